"""Predictive distributions of heads without a closed form: mixtures over draws of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro.heads._input import TargetKind
from bayesagg_pyro.heads._laws import CategoricalPredictive, TakesTargets

__all__ = ["Columns", "MixtureOfDraws", "mixture"]


class MixtureOfDraws(TakesTargets, TorchDistribution):
    """(1/S) Σ_s p(y | h, w_s), elementwise, for any likelihoods of one batch shape.

    Args:
        components: S distributions of batch shape [B, tasks].
        target_kind: what targets are.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real

    def __init__(self, components: Sequence[Any], target_kind: TargetKind = "real") -> None:
        self.components = tuple(components)
        self.target_kind = target_kind
        super().__init__(self.components[0].batch_shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean over likelihoods and draws."""
        return torch.stack([c.mean for c in self.components]).mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Sampling error of `mean`, for independent draws."""
        return _standard_error(torch.stack([c.mean for c in self.components]))

    @property
    def variance(self) -> Tensor:
        """Mean of the likelihoods' variances and variance of their means."""
        inner = torch.stack([c.variance for c in self.components]).mean(0)
        outer = torch.stack([c.mean for c in self.components]).var(0, correction=0)
        return inner + outer

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, elementwise."""
        value = self.taken(value, self.components[0].mean.dtype)
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        each = torch.stack([c.log_prob(value) for c in self.components])
        return each.logsumexp(0) - math.log(len(self.components))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, [*sample_shape, B, tasks]; each from a component of its own."""
        shape = torch.Size(sample_shape) + self.batch_shape
        drawn = torch.stack([c.sample(sample_shape) for c in self.components])
        pick = torch.randint(len(self.components), shape, device=drawn.device)
        return drawn.gather(0, pick[None])[0]


class Columns(TorchDistribution):
    """Independent likelihoods side by side: batch shapes [B] or [B, k] to [B, tasks].

    Args:
        parts: distributions over examples, or over examples and tasks.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self._sizes = [p.batch_shape[1] if len(p.batch_shape) > 1 else 1 for p in self.parts]
        shape = torch.Size([self.parts[0].batch_shape[0], sum(self._sizes)])
        super().__init__(shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Means, [B, tasks]."""
        return self._joined([p.mean for p in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variances, [B, tasks]."""
        return self._joined([p.variance for p in self.parts])

    @property
    def logits(self) -> Tensor:
        """Class logits of the one part, [B, C]."""
        logits: Tensor = self.parts[0].logits
        return logits

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, elementwise."""
        columns = value.split(self._sizes, -1)
        return self._joined(
            [
                p.log_prob(v if len(p.batch_shape) > 1 else v[..., 0])
                for p, v in zip(self.parts, columns, strict=True)
            ],
            value.shape[:-1],
        )

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, [*sample_shape, B, tasks]."""
        leading = torch.Size(sample_shape) + self.batch_shape[:1]
        return self._joined([p.sample(sample_shape) for p in self.parts], leading)

    def _joined(self, columns: list[Tensor], leading: torch.Size | None = None) -> Tensor:
        leading = self.batch_shape[:1] if leading is None else leading
        pairs = zip(columns, self._sizes, strict=True)
        return torch.cat([column.reshape(*leading, size) for column, size in pairs], -1)


def mixture(components: Sequence[Any], target_kind: TargetKind) -> Any:
    """The equal mixture: a Categorical again for Categoricals, else `MixtureOfDraws`."""
    categorical = torch.distributions.Categorical
    single = [c.parts[0] if isinstance(c, Columns) else c for c in components]
    if all(isinstance(c, categorical) for c in single):
        probabilities = torch.stack([c.probs for c in single])
        if probabilities.ndim == 3:  # [S, B, C]: the one task's axis is left out
            probabilities = probabilities[:, :, None]
        made = CategoricalPredictive(probs=probabilities.mean(0), validate_args=False)
        made.standard_error = _standard_error(probabilities)
        return made
    return MixtureOfDraws(components, target_kind)


def _standard_error(draws: Tensor) -> Tensor:
    """Of an average over the first axis."""
    return draws.std(0) / math.sqrt(len(draws)) if len(draws) > 1 else draws[0] + torch.inf
