"""Uncertainty weighting (UW): weights from a learned noise variance for each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.heads import Head
from experiments.methods.base import MethodOptions
from experiments.methods.weighted import WeightedLosses

__all__ = ["UncertaintyWeights"]


class UncertaintyWeights(WeightedLosses):
    """Descend Σ (exp(−s_k) ℓ_k + s_k) / 2 in the network and in the log variances s.

    All s begin at 0 and are trained by the network's optimiser, weight decay included. The weight
    of a task settles at 1 / ℓ_k.

    Source: Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses, CVPR 2018, the
    form for regression, which published comparisons use for every kind of task.
    """

    name: ClassVar[str] = "uw"
    title: ClassVar[str] = "UW"

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: MethodOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        like = next(iter(heads.values())).weight
        self.log_variance = Parameter(torch.zeros(len(self.tasks), device=like.device))

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ (exp(−s_k) ℓ_k + s_k) / 2 over the tasks that are present."""
        each = (-self.log_variance).exp() * losses + self.log_variance
        return (each if present is None else torch.where(present, each, 0.0)).sum() / 2

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, heads, log variances."""
        return chain(super().parameters(), [self.log_variance])

    def state_dict(self) -> dict[str, Any]:
        """State of the network and the log variances."""
        return {**super().state_dict(), "log_variance": self.log_variance.detach()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        super().load_state_dict(state)
        with torch.no_grad():
            self.log_variance.copy_(state["log_variance"])
