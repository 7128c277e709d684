"""Methods that turn the vector of the tasks' losses into one number, and descend that."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.methods.base import Level, Scale
from experiments.methods.network import Network

__all__ = ["WeightedLosses", "shared_out"]


class WeightedLosses(Network):
    """Weighs losses; backbone and heads descend the same weighted sum."""

    scale: ClassVar[Scale] = Scale.SUM
    level: ClassVar[Level] = Level.LOSSES

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass of :meth:`total`."""
        features = self.backbone(inputs)
        losses, present = self.losses(features, targets)
        vector = torch.cat(list(losses.values()))
        self.total(vector, present).backward()
        return self.done(features, targets, losses, present)

    @abstractmethod
    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """What is descended, ``[]``.

        Args:
            losses: ``[K]``, with their graph; 0 where not present.
            present: ``[K]``, which tasks have a target in this batch; None where none can be
                missing. The others must neither weigh nor be remembered as tasks of loss 0.
        """


def shared_out(weights: Tensor, present: Tensor) -> Tensor:
    """Weights ``[K]`` that sum to K, as ones of the tasks that are present, which sum to theirs."""
    kept = torch.where(present, weights, 0.0)
    factor = present.sum() / kept.sum().clamp(min=torch.finfo(kept.dtype).tiny)
    return kept * torch.where(present.all(), 1.0, factor)
