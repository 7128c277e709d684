"""Who hears how a run goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from experiments.benchmark import Data
from experiments.run import Run


class Reporter:
    """Is told how a run goes, and tells nobody; a subclass listens to what it cares for."""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Data and method are ready; ``history`` has the epochs that come from a checkpoint."""

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        """Epoch ``epoch`` (from 1) begins."""

    def step(self, loss: Tensor) -> None:
        """A step is done; ``loss`` is the mean loss over tasks, left on its device."""

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """The epoch's record in the history; ``epoch`` and ``score`` of the best epoch so far."""

    def close(self) -> None:
        """The run is over, however it ended."""


class Several(Reporter):
    """Tells each of several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        for event in ("started", "epoch_started", "step", "epoch_finished", "close"):
            setattr(self, event, partial(_tell, [getattr(one, event) for one in reporters]))


def _tell(each: Sequence[Callable[..., None]], *given: Any) -> None:
    for hear in each:
        hear(*given)
