"""What second-order inference and gradient moments should be, written a second time.

Loops over tasks and examples, log-probabilities by their definition, derivatives by automatic
differentiation of the total, dense float64. Nothing here calls the library except `task`, `prior`,
`gaussian`, `start` and `rows`, which only make inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayesagg_pyro import heads, inference, posteriors, priors
from bayesagg_pyro.targets import Targets

F64 = torch.float64


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to `tolerance`, relative to each entry and to 1."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=F64)


@dataclass
class Task:
    """A head with data and everything that can weigh an example."""

    head: heads.Bernoulli | heads.Categorical
    features: Tensor  #: [N, d]
    targets: Tensor  #: [N, T]
    mask: Tensor | None = None  #: [N, T]
    weight: Tensor | None = None  #: [N, T]
    by_target: Tensor | None = None  #: pos_weight [T], or class_weight [C]

    @property
    def given(self) -> tuple[Tensor, Tensor | None, Tensor] | tuple[Tensor, Tensor] | Tensor:
        if self.weight is not None:
            return self.targets, self.mask, self.weight
        return self.targets if self.mask is None else (self.targets, self.mask)

    @property
    def design(self) -> Tensor:
        ones = torch.ones(len(self.features), 1, dtype=F64)
        return torch.cat([self.features, ones], 1) if self.head.bias else self.features

    @property
    def binary(self) -> bool:
        return isinstance(self.head, heads.Bernoulli)

    def log_likelihood(self, w: Tensor, t: int, b: int) -> Tensor:
        """The log-likelihood of one target under weights [P], with every factor it carries."""
        h, y = self.design[b], self.targets[b, t]
        if self.binary:
            u = h @ w
            log_p = logsigmoid(u) if y == 1 else logsigmoid(-u)
            own = 1.0 if self.by_target is None or y == 0 else self.by_target[t]
        else:
            f = w.reshape(self.head.classes, -1) @ h
            log_p = f[y] - f.logsumexp(0)
            own = 1.0 if self.by_target is None else self.by_target[y]
        factor = 1.0 if self.weight is None else self.weight[b, t]
        return log_p * own * factor

    def nll(self, w: Tensor, t: int) -> Tensor:
        """−Σ log p of the observed examples of task t at w, [P]."""
        total = torch.zeros((), dtype=F64)
        for b in range(len(self.features)):
            if self.mask is None or self.mask[b, t]:
                total = total - self.log_likelihood(w, t, b)
        return total

    def potential(
        self, prior: posteriors.GaussianFamily, t: int, *, data: Callable[..., Tensor] | None = None
    ) -> Callable[[Tensor], Tensor]:
        """The negative log-posterior of task t up to a constant."""
        dense = prior.to_gaussian()
        precision = dense.precision_matrix.expand(self.head.tasks, -1, -1)[t]

        def value(w: Tensor) -> Tensor:
            offset = w - dense.mean[t]
            return (data or self.nll)(w, t) + 0.5 * offset @ precision @ offset

        return value


def newton(value: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ŵ − B⁻¹ a and covariance B⁻¹, a and B by automatic differentiation."""
    point = point.detach().clone()
    hessian = torch.autograd.functional.hessian(value, point)
    (slope,) = torch.autograd.functional.jacobian(value, (point,))
    inverse = torch.linalg.inv(hessian)
    return point - inverse @ slope, inverse


def minimum(value: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """By LBFGS, which shares nothing with a Newton method."""
    w = start.detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [w],
        max_iter=2000,
        tolerance_grad=1e-11,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = value(w)
        loss.backward()
        return loss

    optimiser.step(closure)
    return w.detach()


def task(
    rng: torch.Generator,
    kind: str,
    n: int = 14,
    d: int = 3,
    tasks: int = 2,
    classes: int = 3,
    *,
    bias: bool = True,
    mask: bool = False,
    weight: bool = False,
    by_target: bool = False,
    missing: str = "error",
) -> Task:
    """Random data with as many complications as asked for."""
    own = None
    if kind == "binary":
        own = 0.5 + torch.rand(tasks, generator=rng, dtype=F64) if by_target else None
        head = heads.Bernoulli(d, tasks, bias=bias, pos_weight=own, missing=missing)
        targets = (torch.rand(n, tasks, generator=rng) < 0.4).to(F64)
    else:
        own = 0.5 + torch.rand(classes, generator=rng, dtype=F64) if by_target else None
        head = heads.Categorical(d, classes, tasks=tasks, bias=bias, class_weight=own)
        targets = torch.randint(0, classes, (n, tasks), generator=rng)
    head = head.double()
    observed = torch.rand(n, tasks, generator=rng) < 0.7 if mask else None
    factor = 2 * torch.rand(n, tasks, generator=rng, dtype=F64) if weight else None
    return Task(head, normal(rng, n, d), targets, observed, factor, own)


def prior(rng: torch.Generator, head: heads.Head) -> posteriors.Gaussian:
    """A dense, well-conditioned one around a random mean."""
    size = head.weight_size
    root = normal(rng, head.tasks, size, size)
    precision = root @ root.mT / size + 0.5 * torch.eye(size, dtype=F64)
    mean = 0.5 * normal(rng, head.tasks, size)
    return posteriors.Gaussian(mean, precision).replace(outputs_per_task=head.outputs_per_task)


def gaussian(mean: Tensor, covariance: Tensor, outputs: int = 1) -> posteriors.Gaussian:
    """A posterior from mean [T, P] and covariance [T, P, P]."""
    return posteriors.Gaussian(mean, torch.linalg.inv(covariance)).replace(outputs_per_task=outputs)


KINDS = ("binary", "class")
#: Kinds with every structure of the posterior that they can have.
PAIRS = [
    ("binary", "full"),
    ("binary", "diag"),
    ("class", "full"),
    ("class", "diag"),
    ("class", "kron"),
]
#: Ways in which examples and targets can be weighed or missing.
COMPLICATIONS = [
    {},
    {"mask": True},
    {"weight": True},
    {"by_target": True},
    {"mask": True, "weight": True, "by_target": True},
]
#: Batches of an epoch of 24 examples.
CUTS = [slice(a, b) for a, b in pairwise([0, 3, 10, 11, 24])]


def start(
    t: Task,
    scheme: inference.Scheme,
    storage: inference.Storage | None = None,
    variance: float = 0.7,
) -> priors.Policy:
    """A prior from all examples, before the first."""
    return priors.FullData(variance, storage=storage).start(t.head, scheme)


def rows(t: Task, cut: slice) -> Targets:
    """The targets of a batch."""

    def part(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[cut]

    return Targets(t.targets[cut], part(t.mask), part(t.weight))
