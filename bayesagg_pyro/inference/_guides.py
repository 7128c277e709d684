"""Gaussian guides in whitened coordinates, one block per task, with path derivatives.

The log-density in the bound holds its parameters fixed, so that gradients flow through the draws
alone (Roeder, Wu and Duvenaud, 2017, https://arxiv.org/abs/1703.09194): their noise
vanishes where the guide equals the posterior.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import constraints

from bayesagg_pyro.inference._whitening import DenseWhitening, DiagonalWhitening, Whitening
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    Gaussian,
    GaussianFamily,
    LowRankGaussian,
)


class GaussianGuide(nn.Module):
    """q(z) for the one latent site of a head's model, [tasks, P]; begins at a standard normal."""

    def __init__(self, site: str, plate: str, whitening: Whitening) -> None:
        super().__init__()
        self.site = site
        self.plate = plate
        self.loc = nn.Parameter(torch.zeros_like(whitening.centre.mean))
        self.log_scale = nn.Parameter(torch.zeros_like(self.loc))

    def forward(self) -> Tensor:
        """Draw z inside the plate of tasks."""
        with pyro.plate(self.plate, len(self.loc), dim=-1):
            drawn: Tensor = pyro.sample(self.site, _Pathwise(self))
        return drawn

    def standard(self, *shape: int) -> Tensor:
        """Standard normal draws."""
        return torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)

    @abstractmethod
    def draw(self, shape: torch.Size) -> Tensor:
        """Reparametrised draws, [*shape, tasks, P]."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """log q(z) of [..., tasks, P] at the present parameters, without their graph."""

    @abstractmethod
    def posterior(self) -> GaussianFamily:
        """q as a distribution of the weights."""


class FullGuide(GaussianGuide):
    """N(loc, C Cᵀ) with one lower triangular C per task.

    The entries below the diagonal are the parameters over sqrt(P): an optimiser's noise in P²/2
    entries of one size is a perturbation of C that grows with sqrt(P), and so stays the same.
    """

    def __init__(self, site: str, plate: str, whitening: DenseWhitening) -> None:
        super().__init__(site, plate, whitening)
        self.whitening = whitening
        self.lower = nn.Parameter(torch.diag_embed(torch.zeros_like(self.loc)))

    def scale_tril(self) -> Tensor:
        """C, [tasks, P, P]."""
        below = self.lower.tril(-1) / self.loc.shape[-1] ** 0.5
        tril: Tensor = below + torch.diag_embed(self.log_scale.exp())
        return tril

    def draw(self, shape: torch.Size) -> Tensor:
        """loc + C ε."""
        z = self.standard(*shape, *self.loc.shape)
        moved: Tensor = self.loc + (self.scale_tril() @ z[..., None])[..., 0]
        return moved

    def log_density(self, z: Tensor) -> Tensor:
        """By one triangular solve."""
        tril = self.scale_tril().detach()
        offset = (z - self.loc.detach())[..., None]
        z = torch.linalg.solve_triangular(tril, offset, upper=False)[..., 0]
        return _log_standard(z) - self.log_scale.detach().sum(-1)

    def posterior(self) -> Gaussian:
        """A Gaussian."""
        return self.whitening.gaussian(self.loc.detach(), self.scale_tril().detach())


class DiagonalGuide(GaussianGuide):
    """N(loc, diag(scale²)): mean field."""

    def __init__(self, site: str, plate: str, whitening: DiagonalWhitening) -> None:
        super().__init__(site, plate, whitening)
        self.whitening = whitening

    def draw(self, shape: torch.Size) -> Tensor:
        """loc + scale ε."""
        z = self.standard(*shape, *self.loc.shape)
        moved: Tensor = self.loc + self.log_scale.exp() * z
        return moved

    def log_density(self, z: Tensor) -> Tensor:
        """A product of normals."""
        log_scale = self.log_scale.detach()
        return _log_standard((z - self.loc.detach()) * (-log_scale).exp()) - log_scale.sum(-1)

    def posterior(self) -> DiagonalGaussian:
        """A diagonal Gaussian."""
        scale = self.whitening.scale * self.log_scale.detach().exp()
        return DiagonalGaussian(self.whitening.weights(self.loc.detach()), scale**-2)


class LowRankGuide(GaussianGuide):
    """N(loc, diag(scale²) + F Fᵀ) with F of so many columns.

    F begins small and random: at 0 its gradient would vanish. It is its parameter over sqrt(P), for
    the reason that `FullGuide` has.
    """

    def __init__(self, site: str, plate: str, whitening: DiagonalWhitening, rank: int) -> None:
        super().__init__(site, plate, whitening)
        self.whitening = whitening
        self.directions = nn.Parameter(0.1 * self.standard(*self.loc.shape, rank))

    @property
    def factor(self) -> Tensor:
        """F, [tasks, P, rank]."""
        factor: Tensor = self.directions / self.loc.shape[-1] ** 0.5
        return factor

    def draw(self, shape: torch.Size) -> Tensor:
        """loc + scale ε + F ε'."""
        own = self.standard(*shape, *self.loc.shape)
        shared = self.standard(*shape, len(self.loc), self.factor.shape[-1], 1)
        moved: Tensor = self.loc + self.log_scale.exp() * own + (self.factor @ shared)[..., 0]
        return moved

    def log_density(self, z: Tensor) -> Tensor:
        """By Woodbury's identity."""
        diagonal = (2 * self.log_scale.detach()).exp()
        return LowRankGaussian(self.loc.detach(), self.factor.detach(), diagonal).log_prob(z)

    def posterior(self) -> LowRankGaussian:
        """A low-rank Gaussian."""
        own = self.whitening.scale * self.log_scale.detach().exp()
        shared = self.whitening.scale[..., None] * self.factor.detach()
        return LowRankGaussian(self.whitening.weights(self.loc.detach()), shared, own.square())


class _Pathwise(TorchDistribution):
    """A guide as a distribution: draws carry gradients to its parameters, the density does not."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, guide: GaussianGuide, batch_shape: torch.Size | None = None) -> None:
        self._guide = guide
        tasks, size = guide.loc.shape
        batch = torch.Size([tasks]) if batch_shape is None else batch_shape
        super().__init__(batch, torch.Size([size]))

    def expand(self, batch_shape: Any, _instance: Any = None) -> _Pathwise:
        return _Pathwise(self._guide, torch.Size(batch_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._guide.draw(torch.Size(sample_shape) + self.batch_shape[:-1])

    def log_prob(self, value: Tensor) -> Tensor:
        return self._guide.log_density(value)


def _log_standard(z: Tensor) -> Tensor:
    """Log-density of a standard normal, [..., P] to [...]."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
