"""Predictive distributions of torch that take targets as training does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro._modes import seeded
from bayesagg_pyro.errors import DtypeError, ShapeError, UnsupportedError
from bayesagg_pyro.heads._cumulative import upper_tail
from bayesagg_pyro.heads._input import TargetKind, wrong_kind
from bayesagg_pyro.quadrature import gamma_rule

if TYPE_CHECKING:
    from typing_extensions import Self

#: Quantiles of Student's t are looked for in arcsinh, up to this many scales: 1e17.
_FAR, _BISECTIONS = 40.0, 56


def beside(parts: Tensor, value: Tensor) -> Tensor:
    """Parts [N, B, tasks, ...] with axes for those that values [..., B, tasks] have in front."""
    return parts.reshape(len(parts), *[1] * max(value.ndim - 2, 0), *parts.shape[1:])


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


def no_formula(law: TakesTargets, method: str, instead: str) -> UnsupportedError:
    """The error of a method that a predictive has not, with what does its work."""
    return UnsupportedError(
        f"{law.owner}: the predictive distribution ({type(law).__name__}) has no {method}: "
        f"{instead}"
    )


def drawn(draw: Callable[[], Tensor], generator: torch.Generator | None) -> Tensor:
    """What a function draws: from torch's global generator if none is given."""
    if generator is None:
        return draw()
    with seeded(generator, generator.device, 2**31 - 1):
        return draw()


class _Scores(TakesTargets):
    """Checks before torch's own methods, and a generator for what they draw."""

    #: A parameter, whose precision the density has.
    _parameter: ClassVar[str] = "loc"

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of targets, [..., B, tasks]."""
        law: Any = super()
        scored: Tensor = law.log_prob(self.taken(value, self._dtype))
        return scored

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw targets, [*sample_shape, B, tasks] (torch's global generator if none is given)."""
        law: Any = super()
        return drawn(lambda: law.sample(torch.Size(sample_shape)), generator)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks]."""
        if self.target_kind != "real":
            raise no_formula(self, "cdf", "law.probs has the probability of each label")
        law: Any = super()
        below: Tensor = law.cdf(self.placed(value).to(self._dtype))
        return below

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels, [..., B, tasks]."""
        if self.target_kind != "real":
            raise no_formula(self, "icdf", "law.probs has the probability of each label")
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
    """Student's t, of which torch has no probabilities: it is N(0, 1 / λ) for an uncertain λ."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y), [..., B, tasks]."""
        z = (self.placed(value).to(self._dtype) - self.loc) / self.scale
        return torch.where(z < 0, self._tail(-z), 1 - self._tail(z))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels, [..., B, tasks], by bisection."""
        level = self.placed(value, "levels").to(self._dtype)
        level = level.expand(torch.broadcast_shapes(level.shape, self.batch_shape))
        share = torch.minimum(level, 1 - level)
        near, far = torch.zeros_like(share), torch.full_like(share, _FAR)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (near + far)
            beyond = self._tail(middle.sinh()) > share
            near, far = torch.where(beyond, middle, near), torch.where(beyond, far, middle)
        z = torch.where(share > 0, near.sinh(), torch.where(share == 0, torch.inf, torch.nan))
        quantile: Tensor = self.loc + self.scale * torch.where(level < 0.5, -z, z)
        return quantile

    def _tail(self, z: Tensor) -> Tensor:
        """P(Z > z) of the standard distribution, z at least 0; small ones are not lost beside 1."""
        log_precision, log_weight = (beside(x, z) for x in self._rule)
        return (log_weight.exp() * upper_tail(z * (0.5 * log_precision).exp())).sum(0)

    @cached_property
    def _rule(self) -> tuple[Tensor, Tensor]:
        return gamma_rule(self.df)


class BernoulliPredictive(_Scores, dist.Bernoulli):
    """Probabilities of a 1."""

    target_kind = "binary"
    _parameter = "logits"


class CategoricalPredictive(_Scores, dist.Categorical):
    """Probabilities of classes."""

    target_kind = "class"
    _parameter = "logits"
