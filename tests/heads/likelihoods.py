"""Heads to test, their targets, and references that share no code with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from scipy.special import gammaln
from torch import Tensor

from bayesagg_pyro import heads, posteriors

F64 = torch.float64


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=F64)


MAKERS: dict[str, Callable[[int, int], heads.Head]] = {
    "poisson": lambda d, t: heads.Poisson(d, t),
    "negative binomial": lambda d, t: heads.NegativeBinomial(d, t, dispersion=[0.3, 2.0][:t]),
    "student": lambda d, t: heads.StudentT(d, t, df=[3.0, 8.0][:t], scale=0.7, bias=True),
    "ordinal logit": lambda d, t: heads.Ordinal(d, 4, t, cutpoints=[-1.0, 0.2, 2.5]),
    "ordinal probit": lambda d, t: heads.Ordinal(
        d, 4, t, cutpoints=[-1.0, 0.2, 2.5], link="probit"
    ),
    "heteroscedastic": lambda d, t: heads.Heteroscedastic(d, t),
}
NAMES = list(MAKERS)
ONE = [name for name in NAMES if name != "heteroscedastic"]
REAL = ("student", "heteroscedastic")


def make(name: str, d: int = 3, tasks: int = 2) -> heads.Head:
    return MAKERS[name](d, tasks).double()


def targets_of(rng: torch.Generator, name: str, n: int, tasks: int = 2) -> Tensor:
    if name in REAL:
        return 2 * normal(rng, n, tasks)
    if name.startswith("ordinal"):
        return torch.randint(0, 4, (n, tasks), generator=rng)
    return torch.poisson(1.5 * torch.ones(n, tasks, dtype=F64), generator=rng)


def log_density(name: str, u: np.ndarray, y: float, task: int = 0) -> np.ndarray:
    """Log p(y | u) by scipy, at the settings above."""
    if name == "poisson":
        return stats.poisson.logpmf(y, np.exp(u))
    if name == "negative binomial":
        alpha = (0.3, 2.0)[task]
        r, logit = 1 / alpha, u + np.log(alpha)  # scipy's own takes 1 − p, which rounds to 0
        ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return ways - r * np.logaddexp(0, logit) - y * np.logaddexp(0, -logit)
    if name == "student":
        return stats.t.logpdf(y, (3.0, 8.0)[task], loc=u, scale=0.7)
    edges = np.array([-np.inf, -1.0, 0.2, 2.5, np.inf])
    law = stats.logistic if name == "ordinal logit" else stats.norm
    low, high = edges[int(y)] - u, edges[int(y) + 1] - u
    flip = low + high > 0  # differences of small numbers, not of numbers near 1
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.log(law.cdf(high) - law.cdf(low))


def gaussian(
    rng: torch.Generator, head: heads.Head, scale: float = 0.5, shift: float = 0.5
) -> posteriors.Gaussian:
    """A dense posterior over the head's weights."""
    size = head.weight_size
    root = normal(rng, head.tasks, size, size)
    s = scale**2 * (root @ root.mT / size + 0.1 * torch.eye(size, dtype=F64))
    mean = shift * normal(rng, head.tasks, size)
    dense = posteriors.Gaussian(mean, torch.linalg.inv(s))
    return dense.replace(outputs_per_task=head.outputs_per_task)
