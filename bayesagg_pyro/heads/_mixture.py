"""Predictive distributions of heads without a closed form: mixtures over draws of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

__all__ = ["MixtureOfDraws", "mixture"]


class MixtureOfDraws(TorchDistribution):
    """(1/S) Σ_s p(y | h, w_s), elementwise, for any likelihoods of one batch shape.

    Args:
        components: S distributions of batch shape [B, tasks].
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real

    def __init__(self, components: Sequence[Any]) -> None:
        self.components = tuple(components)
        super().__init__(self.components[0].batch_shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean over likelihoods and draws."""
        return torch.stack([c.mean for c in self.components]).mean(0)

    @property
    def variance(self) -> Tensor:
        """Mean of the likelihoods' variances and variance of their means."""
        inner = torch.stack([c.variance for c in self.components]).mean(0)
        outer = torch.stack([c.mean for c in self.components]).var(0, correction=0)
        return inner + outer

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, elementwise."""
        each = torch.stack([c.log_prob(value) for c in self.components])
        return each.logsumexp(0) - math.log(len(self.components))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, [*sample_shape, B, tasks]; each from a component of its own."""
        shape = torch.Size(sample_shape) + self.batch_shape
        drawn = torch.stack([c.sample(sample_shape) for c in self.components])
        pick = torch.randint(len(self.components), shape, device=drawn.device)
        return drawn.gather(0, pick[None])[0]


def mixture(components: Sequence[Any]) -> Any:
    """The equal mixture: a Categorical again for Categoricals, else `MixtureOfDraws`."""
    if all(isinstance(c, torch.distributions.Categorical) for c in components):
        probabilities = torch.stack([c.probs for c in components]).mean(0)
        return dist.Categorical(probs=probabilities, validate_args=False)
    return MixtureOfDraws(components)
