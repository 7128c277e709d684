"""Small problems with known answers, and how far a posterior is from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import heads, inference, posteriors, priors

F64 = torch.float64


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=F64)


def seed(number: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(number)


class Linear:
    """A Gaussian head with holes and weights in its targets, and its analytic posterior."""

    def __init__(self, rng: torch.Generator, d: int = 3, tasks: int = 2, n: int = 15) -> None:
        self.head = heads.Gaussian(d, tasks, bias=True, noise_scale=[0.5, 1.5][:tasks])
        self.features = normal(rng, n, d)
        mask = torch.rand(n, tasks, generator=rng) < 0.8
        weight = torch.rand(n, tasks, generator=rng, dtype=F64) * 2
        self.targets = (normal(rng, n, tasks), mask, weight)
        self.prior = priors.isotropic(self.head, 0.7)
        self.exact = inference.Conjugate().infer(*self.arguments)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.head, self.features, self.targets, self.prior

    def far(self, posterior: posteriors.Posterior) -> tuple[float, float]:
        """Error of the mean in standard deviations; of the covariance, relative in Frobenius."""
        return distance(posterior, self.exact)


def covariances(posterior: posteriors.Posterior) -> Tensor:
    if isinstance(posterior, posteriors.Empirical):
        return torch.stack([torch.cov(part.T) for part in posterior.samples.unbind(1)])
    return posterior.covariance_matrix.expand(posterior.tasks, -1, -1)


def distance(
    posterior: posteriors.Posterior, exact: posteriors.GaussianFamily
) -> tuple[float, float]:
    mean = ((posterior.mean - exact.mean) / exact.variance.sqrt()).abs().max()
    truth = covariances(exact)
    wrong = (covariances(posterior) - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    return float(mean), float(wrong.max())


def by_grid(log_density: Any, points: int = 400, width: float = 12.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of a one-dimensional density on a grid about 0."""
    grid = torch.linspace(-width, width, points, dtype=F64)
    weight = torch.softmax(torch.stack([log_density(w) for w in grid]), 0)
    mean = (weight * grid).sum()
    return mean, (weight * (grid - mean).square()).sum()
