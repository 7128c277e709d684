"""Methods that turn the vector of the tasks' losses into one number, and descend that."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.methods.base import Level, Scale
from experiments.methods.network import Network

__all__ = ["WeightedLosses"]


class WeightedLosses(Network):
    """Weighs losses; backbone and heads descend the same weighted sum."""

    scale: ClassVar[Scale] = Scale.SUM
    level: ClassVar[Level] = Level.LOSSES

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass of :meth:`total`."""
        features = self.backbone(inputs)
        losses = self.losses(features, targets)
        self.total(torch.cat(list(losses.values()))).backward()
        return self.done(features, targets, losses)

    @abstractmethod
    def total(self, losses: Tensor) -> Tensor:
        """What is descended, ``[]``, from the losses ``[K]`` with their graph."""
