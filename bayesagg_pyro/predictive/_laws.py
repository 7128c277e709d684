"""Predictive distributions of torch that take targets as training does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro.errors import DtypeError, ShapeError
from bayesagg_pyro.heads._input import TargetKind, wrong_kind

if TYPE_CHECKING:
    from typing_extensions import Self


class TakesTargets:
    """Mixin of distributions of batch shape [..., B, tasks]: values fit it, or are refused.

    A value is [B, tasks], [B] for a single task, [..., B, tasks] such as samples, or one number or
    several, [] and [..., 1, 1], for all examples and tasks alike. Nothing else is broadcast: [B]
    beside [B, 1] would be a table of every target under every prediction.
    """

    target_kind: TargetKind = "real"
    owner: str = "the predictive distribution"
    batch_shape: Any

    def of(self, owner: str) -> Self:
        """Say who speaks in errors; returns itself."""
        self.owner = owner
        return self

    def placed(self, value: Tensor, what: str = "targets") -> Tensor:
        """The value, [..., B, tasks], [..., 1, 1] or [].

        Raises:
            DtypeError: for what is no tensor.
            ShapeError: for what does not fit.
        """
        if not isinstance(value, Tensor):
            raise DtypeError(f"{self.owner}: {what} must be a tensor, not {type(value).__name__}")
        batch, tasks = self.batch_shape[-2:]
        if tasks == 1 and value.shape == (batch,):
            return value[:, None]
        common = value.ndim > 2 and value.shape[-2:] == (1, 1)
        if value.ndim and value.shape[-2:] != (batch, tasks) and not common:
            raise ShapeError(
                f"{self.owner}: {what} must have shape [{batch}, {tasks}] (examples, tasks), "
                f"[..., {batch}, {tasks}] or [], not {list(value.shape)}"
            )
        return value

    def taken(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets, [..., B, tasks], in the precision of the density; labels as integers.

        Raises:
            DtypeError: for a type that training does not take either.
            ShapeError: for what does not fit.
        """
        value = self.placed(value)
        if wrong := wrong_kind(value, self.target_kind):
            raise DtypeError(f"{self.owner}: {wrong}")
        return value.long() if self.target_kind == "class" else value.to(dtype)


class _Scores(TakesTargets):
    """Checks before torch's own methods."""

    #: A parameter, whose precision the density has.
    _parameter: ClassVar[str] = "loc"

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of targets, [..., B, tasks]."""
        law: Any = super()
        scored: Tensor = law.log_prob(self.taken(value, self._dtype))
        return scored

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks]."""
        law: Any = super()
        below: Tensor = law.cdf(self.placed(value).to(self._dtype))
        return below

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels, [..., B, tasks]."""
        law: Any = super()
        quantile: Tensor = law.icdf(self.placed(value, "levels").to(self._dtype))
        return quantile

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(self, self._parameter).dtype
        return dtype


class NormalPredictive(_Scores, dist.Normal):
    """N(μ, σ²)."""


class StudentTPredictive(_Scores, dist.StudentT):
    """Student's t."""


class BernoulliPredictive(_Scores, dist.Bernoulli):
    """Probabilities of a 1."""

    target_kind = "binary"
    _parameter = "logits"


class CategoricalPredictive(_Scores, dist.Categorical):
    """Probabilities of classes."""

    target_kind = "class"
    _parameter = "logits"
