"""Dynamic weight average (DWA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.methods.base import MethodOptions, Needs
from experiments.methods.weighted import WeightedLosses, shared_out
from experiments.settings import require_numbers

__all__ = ["DynamicAverage", "DynamicAverageOptions"]


@dataclass(frozen=True)
class DynamicAverageOptions(MethodOptions):
    """Options of dynamic weight average.

    Attributes:
        temperature: T; larger makes weights more alike.
    """

    temperature: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "temperature", above=0, such_as="2")


class DynamicAverage(WeightedLosses):
    """Descend Σ w_k ℓ_k with w = K softmax(r / T), r_k = L_k(t − 1) / L_k(t − 2).

    L_k(t) is the task's mean training loss in epoch t, over batches that have its targets, and K
    the number of tasks in the batch. In the first two epochs all weights are 1. A task whose loss
    has been 0, or that an epoch had no targets of, counts as one that no longer falls, r_k = 1.

    Source: Liu et al., End-to-End Multi-Task Learning with Attention, CVPR 2019, eq. 7.
    """

    name: ClassVar[str] = "dwa"
    title: ClassVar[str] = "DWA"
    needs: ClassVar[frozenset[Needs]] = frozenset({Needs.EPOCHS})
    options_type: ClassVar[type[MethodOptions]] = DynamicAverageOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: DynamicAverageOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.temperature = options.temperature
        self.weights = torch.ones(len(self.tasks))
        self._averages: list[Tensor] = []
        self._sum: Tensor | None = None
        self._batches = torch.zeros(len(self.tasks))

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ w_k ℓ_k."""
        seen = losses.detach()
        self._sum = seen.clone() if self._sum is None else self._sum.add_(seen)
        self._batches = self._batches.to(losses)
        self._batches += 1 if present is None else present
        self.weights = self.weights.to(losses)
        if present is None:
            return self.weights @ losses
        return shared_out(self.weights, present) @ losses

    def end_epoch(self, epoch: int) -> None:
        """Work out the next epoch's weights."""
        if self._sum is None:
            return
        average = self._sum / self._batches  # NaN for a task without any target
        if self._averages:
            average = torch.where(self._batches > 0, average, self._averages[-1])
        self._averages = [*self._averages, average][-2:]
        self._sum, self._batches = None, torch.zeros(len(self.tasks))
        if len(self._averages) == 2:
            older, newer = self._averages
            rate = torch.where(older > 0, newer / older, 1.0)
            self.weights = len(rate) * (rate / self.temperature).softmax(0)

    def state_dict(self) -> dict[str, Any]:
        """State of the network, the weights and the last epochs' losses."""
        return {**super().state_dict(), "weights": self.weights, "averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self.weights = state["weights"].clone()
        place = next(self.heads.parameters()).device
        self._averages = [average.to(place) for average in state["averages"]]
        self._sum, self._batches = None, torch.zeros(len(self.tasks))
