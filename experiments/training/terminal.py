"""Progress in a terminal: bars where there is one, a line per epoch where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from torch import Tensor

from experiments.benchmark import Data
from experiments.run import Run
from experiments.training import results
from experiments.training.reporting import Reporter

_REFRESH_SECONDS = 0.25  # reading a loss waits for a GPU, so not at every step


def reporter(console: Console) -> Reporter:
    """Bars for a person, lines for a log."""
    return Bars(console) if console.is_terminal else Lines(console)


class Lines(Reporter):
    """A line when a run starts and one per epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._score_name = ""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Say what begins."""
        self._score_name = run.benchmark.score_name
        self._print(_headline(run, data, len(history)))

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """The epoch in a line."""
        self._print(
            f"epoch {record['epoch']} ({record['phase']})  "
            f"{_figures(record, self._score_name)}  "
            f"{record['seconds']:.1f} s"
        )

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False)


class _ProgressWithLine(Progress):
    """Bars, and below them a line of text, which a narrow terminal wraps instead of cutting."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars' table, then the line."""
        yield from super().get_renderables()
        if self.line:
            yield Text(self.line)


class Bars(Reporter):
    """One bar over the epochs of a run and one over the steps of an epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = _ProgressWithLine(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )
        self._epochs: TaskID | None = None
        self._steps: TaskID | None = None
        self._shown = 0.0
        self._pending = 0
        self._score_name = ""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Say what begins, and show the bars."""
        self._score_name = run.benchmark.score_name
        self.console.print(_headline(run, data, len(history)), highlight=False)
        self._epochs = self._progress.add_task(
            "epochs", total=run.settings.epochs, completed=len(history), figures=""
        )
        self._steps = self._progress.add_task("steps", total=None, figures="")
        self._progress.start()

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        """Begin the bar of the steps anew."""
        if self._steps is not None:
            self._progress.reset(
                self._steps, total=steps, description=phase, figures=f"lr {learning_rate:.2g}"
            )
        self._rate = learning_rate
        self._pending = 0

    def step(self, loss: Tensor) -> None:
        """Move the bar, a few times a second."""
        self._pending += 1
        now = time.monotonic()
        if self._steps is not None and now - self._shown > _REFRESH_SECONDS:
            self._shown = now
            figures = f"loss {float(loss):.3g}  lr {self._rate:.2g}"
            self._progress.update(self._steps, advance=self._pending, figures=figures)
            self._pending = 0

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """Move the bar of the epochs and show the epoch's figures."""
        if self._steps is not None and self._epochs is not None:
            self._progress.update(self._steps, advance=self._pending)
            self._progress.update(self._epochs, completed=record["epoch"])
            self._progress.line = (
                f"epoch {record['epoch']}  {_figures(record, self._score_name)}  "
                f"(best {best['score']:.1f} % in epoch {best['epoch']})"
            )

    def close(self) -> None:
        """Take the bars away."""
        self._progress.stop()


def _headline(run: Run, data: Data, epochs_done: int) -> str:
    told = results.contents(data.contents(run.benchmark.losses))
    start = f", going on after epoch {epochs_done}" if epochs_done else ""
    return (
        f"{run.benchmark.title}: {run.method}, {run.settings.epochs} epochs, seed "
        f"{run.settings.seed}, {told}{start}"
    )


def _figures(record: Mapping[str, Any], score_name: str) -> str:
    losses = [loss for loss in record["train_loss"].values() if loss is not None]
    loss = f"loss {sum(losses) / len(losses):.4f}" if losses else "no labels"
    text = f"{loss}  lr {record['learning_rate']:.2g}  {score_name} {record['score']:.1f} %"
    effective = record["effective_tasks"]
    return (
        text if effective is None else f"{text}  effective tasks {effective:.1f} of {len(losses)}"
    )
