"""Who hears how a run goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from experiments.benchmark import Data
from experiments.run import Run

__all__ = ["Reporter", "Silent"]


class Reporter(Protocol):
    """Is told how a run goes."""

    def started(self, run: Run, data: Data, epochs_done: int) -> None:
        """Data and method are ready; ``epochs_done`` epochs come from a checkpoint."""

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        """Epoch ``epoch`` (from 1) begins."""

    def step(self, loss: Tensor) -> None:
        """A step is done; ``loss`` is the mean loss over tasks, left on its device."""

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """The epoch's record in the history; ``epoch`` and ``score`` of the best epoch so far."""

    def close(self) -> None:
        """The run is over, however it ended."""


class Silent:
    """Tells nobody."""

    def started(self, run: Run, data: Data, epochs_done: int) -> None:
        """Nothing."""

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        """Nothing."""

    def step(self, loss: Tensor) -> None:
        """Nothing."""

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
