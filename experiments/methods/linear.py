"""Linear scalarisation: the sum of the tasks' losses, the baseline of the literature."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.methods.base import Capture, Level, Scale
from experiments.methods.network import Network

__all__ = ["LinearScalarization"]


class LinearScalarization(Network):
    """Descend the plain sum of all tasks' mean losses (LS).

    This is the loop that anybody would write by hand, and nothing more, so that its speed and its
    result can serve as the reference.
    """

    name: ClassVar[str] = "ls"
    title: ClassVar[str] = "LS"
    scale: ClassVar[Scale] = Scale.SUM
    level: ClassVar[Level] = Level.LOSSES
    capture = Capture.RUN

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One ordinary forward and backward pass."""
        features = self.backbone(inputs)
        losses, present = self.losses(features, targets)
        torch.cat(list(losses.values())).sum().backward()
        return self.done(features, targets, losses, present)
