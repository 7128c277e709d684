"""Heads with data, engines on a small network, and every policy with every scheme that takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads, inference, priors

D, TASKS = 4, 3


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def same(left: Any, right: Any, tolerance: float = 1e-10) -> None:
    """Two Gaussians agree."""
    close(left.mean, right.mean, tolerance)
    a, b = (p.covariance_matrix.expand(left.tasks, -1, -1) for p in (left, right))
    close(a, b, tolerance)


@dataclass
class Data:
    head: Any
    features: Tensor
    targets: Any

    def rows(self, part: slice) -> tuple[Tensor, Any]:
        if isinstance(self.targets, tuple):
            return self.features[part], tuple(None if t is None else t[part] for t in self.targets)
        return self.features[part], self.targets[part]

    def parsed(self, part: slice) -> tuple[Tensor, Any]:
        features, targets = self.rows(part)
        return features, self.head.parse_targets(targets, len(features))


def gaussian(rng: torch.Generator, n: int = 30, noise: Any = (0.3, 1.0, 2.0)) -> Data:
    """Regression with holes and weights."""
    head = heads.Gaussian(D, TASKS, bias=True, noise_scale=noise)
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    y = h @ torch.randn(D, TASKS, generator=rng, dtype=torch.float64)
    y = y + 0.5 * torch.randn(n, TASKS, generator=rng, dtype=torch.float64)
    mask = torch.rand(n, TASKS, generator=rng) < 0.8
    weight = torch.rand(n, generator=rng, dtype=torch.float64) + 0.5
    return Data(head, h, (y.where(mask, 0.0), mask, weight))


def bernoulli(rng: torch.Generator, n: int = 30) -> Data:
    head = heads.Bernoulli(D, TASKS)
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    y = (torch.rand(n, TASKS, generator=rng) < 0.5).double()
    return Data(head, h, y)


def categorical(rng: torch.Generator, n: int = 30) -> Data:
    head = heads.Categorical(D, 3)
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    return Data(head, h, torch.randint(3, (n,), generator=rng))


SCHEMES: dict[str, tuple[Callable[..., Data], inference.Scheme]] = {
    "conjugate": (gaussian, inference.Conjugate()),
    "taylor on gaussian": (gaussian, inference.TaylorGGN()),
    "taylor": (bernoulli, inference.TaylorGGN()),
    "taylor diag": (bernoulli, inference.TaylorGGN("diag")),
    "laplace": (bernoulli, inference.Laplace()),
    "softmax": (categorical, inference.TaylorGGN()),
    "softmax kron": (categorical, inference.TaylorGGN("kron")),
}

POLICIES: dict[str, Callable[[], priors.Policy]] = {
    "full": lambda: priors.FullData(0.5),
    "full in place": lambda: priors.FullData(0.5, in_place=True),
    "full streamed": lambda: priors.FullData(0.5, storage=inference.Storage(streaming=True)),
    "full left out": lambda: priors.FullData(0.5, leave_batch_out=True),
    "constant": lambda: priors.Constant(0.5, temperature=2.0),
    "previous": lambda: priors.PreviousBatch(0.2, variance=0.5),
    "previous in place": lambda: priors.PreviousBatch(0.2, variance=0.5, in_place=True),
    "running": lambda: priors.Running(20, variance=0.5),
    "running slow": lambda: priors.Running(
        20, variance=0.5, refresh=2, temperature=1.5, leave_batch_out=True
    ),
    "fresh": lambda: priors.Fresh(variance=0.5, leave_batch_out=True),
    "fresh part": lambda: priors.Fresh(25, variance=0.5, temperature=0.5),
    "evidence": lambda: priors.FullData(priors.Evidence(bounds=(1e-3, 1e3))),
    "evidence shared": lambda: priors.FullData(
        priors.Evidence("shared", bounds=(1e-3, 1e3)), temperature=2.0
    ),
    "fresh evidence": lambda: priors.Fresh(variance="learned"),
}


class Run:
    """A small engine on a network, its data in three batches, trained by plain descent."""

    def __init__(
        self,
        rng: torch.Generator,
        kind: str,
        policy: priors.Policy,
        scheme: inference.Scheme | None = None,
    ) -> None:
        make, default = SCHEMES[kind]
        self.data = make(rng, n=36)
        self.backbone = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, D)).double()
        self.mtl = ba.BayesAgg(
            {"a": self.data.head},
            aggregation.PrecisionWeighted.paper(),
            inference=scheme or default,
            prior=policy,
            estimator={"a": ba.gradients.MonteCarlo(8)} if kind.startswith("softmax") else None,
            generator=torch.Generator().manual_seed(3),
        ).double()

    def batches(self) -> Iterator[tuple[Tensor, Any]]:
        for i in range(0, 36, 12):
            x, y = self.data.rows(slice(i, i + 12))
            yield x, {"a": y}

    def update(self) -> None:
        tracker = self.mtl._slots["a"].tracker
        if tracker.takes_batches:
            self.mtl.update_prior(batches=((self.backbone(x), y) for x, y in self.batches()))
        else:
            self.mtl.update_prior()

    def step(self, x: Tensor, y: Any) -> None:
        for module in (self.backbone, self.mtl):
            module.zero_grad()
        self.mtl.backward(self.backbone(x), y)
        with torch.no_grad():
            for p in [*self.backbone.parameters(), *self.mtl.parameters()]:
                if p.grad is not None:
                    p -= 0.01 * p.grad

    def epoch(self) -> None:
        for x, y in self.batches():
            self.step(x, y)
        self.update()
