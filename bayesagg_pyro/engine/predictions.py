"""Predictive distributions in the shape of the features and the units of the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from bayesagg_pyro._torch_distribution import TorchDistribution
from bayesagg_pyro.engine.layout import Layout
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.heads._standardising import Units
from bayesagg_pyro.predictive._laws import TakesTargets


def _laid_out(name: str) -> Any:
    """A property: what the distribution of the rows calls so, in the features' shape."""
    return property(lambda self: self._layout.back(getattr(self.rows, name)))


class InLayout(TorchDistribution):
    """A predictive distribution in the shape of the features: tasks or classes on their axis.

    Args:
        rows: the distribution of the rows, batch shape [examples, tasks]; kept under this name.
        layout: of the features.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)

    def __init__(self, rows: Any, layout: Layout) -> None:
        self.rows = rows
        self._layout = layout
        sizes = [*layout.others]
        sizes.insert(layout.axis, rows.batch_shape[-1])
        super().__init__(torch.Size(sizes), validate_args=False)

    @property
    def support(self) -> Any:
        """That of the rows."""
        return self.rows.support

    mean, variance = _laid_out("mean"), _laid_out("variance")
    #: Var E[y | w] and E Var[y | w], where the distribution of the rows has them.
    epistemic_variance = _laid_out("epistemic_variance")
    aleatoric_variance = _laid_out("aleatoric_variance")
    #: Of labels; of several classes with tasks and classes on the features' axis.
    probs, logits = _laid_out("probs"), _laid_out("logits")

    def entropy(self) -> Tensor:
        """Of each example and task."""
        return self._layout.back(self.rows.entropy())

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of targets in the features' shape; draws of them in front."""
        return self._through(self.rows.log_prob, value)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y)."""
        return self._through(self.rows.cdf, value)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels."""
        return self._through(self.rows.icdf, value)

    def sample(self, sample_shape: Any = (), **how: Any) -> Tensor:
        """Draw targets; further arguments as the distribution of the rows takes them."""
        shape = torch.Size(sample_shape)
        return self._layout.back(self.rows.sample(shape, **how), leading=len(shape))

    def _through(self, function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return self._layout.back(function(value))
        if self.batch_shape[self._layout.axis] == 1 and value.shape == self._layout.others:
            value = value.unsqueeze(self._layout.axis)
        front = value.ndim - len(self.batch_shape)
        if front < 0 or value.shape[front:] != self.batch_shape:
            raise ShapeError(
                f"the predictive distribution is of shape {list(self.batch_shape)}, values must "
                f"be so too, with any axes in front, not {list(value.shape)}"
            )
        rows = value.movedim(front + self._layout.axis, -1).flatten(front, -2)
        return self._layout.back(function(rows), leading=front)


def _squared(name: str) -> Any:
    """A property: a variance of the distribution in the head's units, in those of the targets."""

    def variance(self: InTargetUnits) -> Tensor:
        found: Tensor = getattr(self.standardised, name)
        return found * self._units.scale.square().to(found)

    return property(variance)


class InTargetUnits(TakesTargets, TorchDistribution):
    """A predictive distribution of a head that has units of its own, in those of the targets.

    It takes values as that distribution does.

    Args:
        standardised: in the head's units, batch shape [examples, tasks]; kept under this name.
        units: of the head.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.real

    def __init__(self, standardised: Any, units: Units) -> None:
        self.standardised = standardised
        self._units = Units(units.loc.clone(), units.scale.clone())
        super().__init__(standardised.batch_shape, validate_args=False)
        self.of(getattr(standardised, "owner", self.owner))

    @property
    def mean(self) -> Tensor:
        """E[y]."""
        return self._units.back(self.standardised.mean)

    variance = _squared("variance")
    #: Var E[y | w] and E Var[y | w], where the distribution has them.
    epistemic_variance = _squared("epistemic_variance")
    aleatoric_variance = _squared("aleatoric_variance")

    @property
    def standard_error(self) -> Tensor:
        """Sampling error of the mean, where the distribution has one."""
        found: Tensor = self.standardised.standard_error
        return found * self._units.scale.to(found)

    def entropy(self) -> Tensor:
        """Of each example and task."""
        found: Tensor = self.standardised.entropy()
        return found + self._units.scale.log().to(found)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of targets [..., B, tasks]."""
        found: Tensor = self.standardised.log_prob(self._of(self.taken(value, self._dtype)))
        return found - self._units.scale.log().to(found)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ y)."""
        below: Tensor = self.standardised.cdf(self._of(self.placed(value)))
        return below

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles at levels."""
        return self._units.back(self.standardised.icdf(value))

    def sample(self, sample_shape: Any = (), **how: Any) -> Tensor:
        """Draw targets; further arguments as the distribution takes them."""
        return self._units.back(self.standardised.sample(torch.Size(sample_shape), **how))

    @property
    def _dtype(self) -> torch.dtype:
        return self._units.loc.dtype

    def _of(self, value: Tensor) -> Tensor:
        """Targets that fit, in the head's units; each task has its own."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return self._units.of(value.to(self._dtype).expand(shape))
