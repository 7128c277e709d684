"""Scale-invariant scalarisation (SI): the sum of the logarithms of the losses."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from experiments.errors import DivergenceError
from experiments.methods.base import Capture
from experiments.methods.weighted import WeightedLosses

__all__ = ["ScaleInvariant", "log_losses"]


class ScaleInvariant(WeightedLosses):
    """Descend Σ log ℓ_k: the gradient does not change when a task's loss is multiplied.

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022 (a baseline there).
    """

    name: ClassVar[str] = "si"
    title: ClassVar[str] = "SI"
    capture = Capture.RUN

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ log ℓ_k over the tasks that are present."""
        logs = log_losses(losses, self.tasks)
        return (logs if present is None else torch.where(present, logs, 0.0)).sum()


def log_losses(losses: Tensor, tasks: tuple[str, ...]) -> Tensor:
    """Logarithms of losses, ``[K]``; a task whose loss is 0 gets no gradient.

    Raises:
        DivergenceError: A loss is negative (looked for on the CPU alone).
    """
    if losses.device.type == "cpu" and (losses < 0).any():
        task = int((losses < 0).nonzero()[0])
        raise DivergenceError(
            f"training loss of task {tasks[task]} is {float(losses[task].detach())}: the logarithm "
            "needs positive losses; use a method without it, such as ls, uw or rlw"
        )
    return losses.clamp(min=torch.finfo(losses.dtype).tiny).log()
