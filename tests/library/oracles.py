"""What the library should compute, written a second time: dense, slow, float64, loop by loop.

Nothing here calls the library, except `case` and `gradient_moments`, which only make inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from bayesagg_pyro import gradients, heads, posteriors


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to `tolerance`, relative to each entry and to 1."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def with_bias(features: Tensor, bias: bool) -> Tensor:
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    return torch.cat([features, ones], 1) if bias else features


def posterior(
    design: Tensor,
    targets: Tensor,
    noise: Sequence[float],
    prior_mean: Tensor,
    prior_covariance: Tensor,
    observed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The paper's eq. reg_post, one task after another: mean [T, D] and covariance [T, D, D]."""
    means, covariances = [], []
    for t in range(targets.shape[1]):
        rows = torch.ones(len(design), dtype=torch.bool) if observed is None else observed[:, t]
        h, y, inverse = design[rows], targets[rows, t], torch.linalg.inv(prior_covariance[t])
        s = torch.linalg.inv(inverse + h.T @ h / noise[t] ** 2)
        means.append(s @ (inverse @ prior_mean[t] + h.T @ y / noise[t] ** 2))
        covariances.append(s)
    return torch.stack(means), torch.stack(covariances)


def moments(
    mean: Tensor, covariance: Tensor, design: Tensor, targets: Tensor, features: int
) -> tuple[Tensor, Tensor]:
    """The paper's eq. explicit_mom term by term: E[g], [T, B, d], and Cov[g], [T, B, d, d]."""
    tasks, batch = len(mean), len(design)
    first = torch.zeros(tasks, batch, features, dtype=mean.dtype)
    cov = torch.zeros(tasks, batch, features, features, dtype=mean.dtype)
    for t, b in product(range(tasks), range(batch)):
        m, s, h, y = mean[t], covariance[t], design[b], targets[b, t]
        outer, a = torch.outer(m, m), torch.outer(h, h)
        e = 2 * (s @ h + m * (h @ m - y))
        second = 4 * (
            y**2 * (s + outer)
            - 2
            * y
            * (
                torch.outer(m, h) @ (s + outer)
                + (s + outer) @ torch.outer(h, m)
                + (h @ m) * (s - outer)
            )
            + (s + outer) @ (a + a.T) @ (s + outer)
            + torch.trace(a @ s) * (s + outer)
            + (m @ a @ m) * (s - outer)
        )
        first[t, b] = e[:features]
        cov[t, b] = (second - torch.outer(e, e))[:features, :features]
    return first, cov


def cubature(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Points [S, D] and weights [S] that integrate polynomials of degree 5 under N(m, S)."""
    nodes = torch.tensor([-(3**0.5), 0.0, 3**0.5], dtype=mean.dtype)
    weights = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=mean.dtype)
    size = len(mean)
    grid = torch.cartesian_prod(*[nodes] * size).reshape(-1, size)
    mass = torch.cartesian_prod(*[weights] * size).reshape(-1, size).prod(1)
    return mean + grid @ torch.linalg.cholesky(covariance).T, mass


def precision_weights(
    variance: Tensor, power: Sequence[float], observed: Tensor | None = None
) -> Tensor:
    """α of eq. nll_solution_diag in extended precision; they sum to the observed share.

    Tasks of power 0 have 1 / T each, and the others the rest.
    """
    lam = np.asarray(variance.double().numpy(), dtype=np.longdouble) ** -1
    lam = lam ** np.asarray(power, dtype=np.longdouble)[:, None, None]
    seen = np.ones(variance.shape[:2]) if observed is None else observed.double().numpy()
    compared = seen * (np.asarray(power)[:, None] > 0)
    lam = np.where(compared[..., None] > 0, lam, 0)
    total = lam.sum(0)
    alpha = lam / np.where(total > 0, total, 1) * compared.mean(0)[:, None]
    alpha = alpha + ((seen - compared) / len(seen))[..., None]
    return torch.tensor(alpha.astype(np.float64))


@dataclass
class Case:
    head: heads.Gaussian
    features: Tensor  # [N, d]
    targets: Tensor  # [N, T]
    prior: posteriors.Gaussian
    noise: list[float]

    @property
    def design(self) -> Tensor:
        return with_bias(self.features, self.head.bias)


def spd(rng: torch.Generator, tasks: int, size: int) -> Tensor:
    """Random, well-conditioned symmetric positive definite matrices."""
    root = torch.randn(tasks, size, size, generator=rng, dtype=torch.float64)
    return root @ root.mT / size + 0.5 * torch.eye(size, dtype=torch.float64)


def case(
    rng: torch.Generator,
    n: int = 12,
    d: int = 4,
    tasks: int = 3,
    *,
    bias: bool = False,
    noise: float | list[float] = 1.0,
    shared: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """A head, data and a dense prior, [1, D, D] if `shared`, else one matrix for each task."""
    head = heads.Gaussian(d, tasks=tasks, bias=bias, noise_scale=noise)
    precision = spd(rng, 1 if shared else tasks, d + bias)
    mean = torch.randn(tasks, d + bias, generator=rng, dtype=torch.float64)
    features = torch.randn(n, d, generator=rng, dtype=torch.float64).to(dtype)
    targets = torch.randn(n, tasks, generator=rng, dtype=torch.float64).to(dtype)
    scales = noise if isinstance(noise, list) else [noise] * tasks
    return Case(head, features, targets, posteriors.Gaussian(mean, precision), scales)


def gradient_moments(
    rng: torch.Generator,
    tasks: int = 3,
    batch: int = 4,
    d: int = 5,
    *,
    observed: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> gradients.GradientDistribution:
    """Random means and log-normal variances, 0 where not observed."""
    mean = torch.randn(tasks, batch, d, generator=rng, dtype=torch.float64)
    variance = (2 * torch.randn(tasks, batch, d, generator=rng, dtype=torch.float64)).exp()
    if observed is not None:
        mean, variance = (x.where(observed[..., None], 0.0) for x in (mean, variance))
    return gradients.GradientDistribution(mean.to(dtype), variance.to(dtype), observed)
