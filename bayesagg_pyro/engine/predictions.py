"""Predictive distributions in the shape of features that have more axes than two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._torch_distribution import TorchDistribution
from bayesagg_pyro.engine.layout import Layout
from bayesagg_pyro.errors import ShapeError

__all__ = ["InLayout"]


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

    @property
    def mean(self) -> Tensor:
        """E[y]."""
        return self._layout.back(self.rows.mean)

    @property
    def variance(self) -> Tensor:
        """Var y."""
        return self._layout.back(self.rows.variance)

    @property
    def epistemic_variance(self) -> Tensor:
        """Var E[y | w], where the distribution of the rows has it."""
        return self._layout.back(self.rows.epistemic_variance)

    @property
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | w], where the distribution of the rows has it."""
        return self._layout.back(self.rows.aleatoric_variance)

    @property
    def probs(self) -> Tensor:
        """Probabilities; of several classes with tasks and classes on the features' axis."""
        return self._layout.back(self.rows.probs)

    @property
    def logits(self) -> Tensor:
        """Their logits, in the same shape."""
        return self._layout.back(self.rows.logits)

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
