"""A plan in a terminal: what it is, what it will cost, how it goes, how it ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.runner.estimate import Cost
from experiments.runner.plan import Job
from experiments.runner.store import Place, State
from experiments.runner.worker import Ending, Outcome

__all__ = ["Watcher", "duration", "plan_table", "summary"]

_COLOURS = {
    "done": "green",
    "done before": "green",
    "failed": "red",
    "training": "cyan",
    "preparing": "cyan",
    "interrupted": "yellow",
    "at work elsewhere": "yellow",
}
_LINE_SECONDS = 60.0
_STALE_SECONDS = 2.0


def duration(seconds: float | None) -> str:
    """``"45 s"``, ``"12 min"``, ``"3.4 h"``; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_table(jobs: Sequence[Job], cost: Cost | None) -> Table:
    """One row for each configuration: how many runs, how far they are, what is left to pay."""
    table = Table(title=f"{len(jobs)} runs", title_justify="left")
    for name in ("method", "configuration", "seeds", "done", "begun", "epochs", "time left"):
        table.add_column(name, justify="left" if name in ("method", "configuration") else "right")
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.folder.parent.name, []).append(job)
    for name, group in groups.items():
        states = Counter(Place(job.folder).state() for job in group)
        left = None
        if cost is not None:
            left = sum(cost.seconds.get(job) or 0.0 for job in group)
        table.add_row(
            group[0].run.method,
            name.rpartition("-")[2],
            str(len(group)),
            str(states[State.DONE]),
            str(states[State.STARTED]),
            str(group[0].run.settings.epochs),
            duration(left),
        )
    if cost is not None:
        table.caption = (
            f"about {duration(cost.wall)} with {cost.parallel} side by side "
            f"({duration(cost.work)} of work), from a few steps of each method"
        )
        unknown = sum(value is None for value in cost.seconds.values())
        if unknown:
            table.caption += f"; {unknown} runs could not be tried"
    return table


def summary(outcomes: Mapping[Job, Outcome]) -> str:
    """How many ended how."""
    counted = Counter(outcome.ending for outcome in outcomes.values())
    return ", ".join(f"{counted[ending]} {ending.value}" for ending in Ending if counted[ending])


class Watcher:
    """Shows how the jobs go: a live table for a person, lines for a log.

    Args:
        jobs: The plan.
        console: Where.
    """

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._jobs, self._console = jobs, console
        self._began = time.time()
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._said: set[Job] = set()
        self._lined = self._drawn = 0.0

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, outcomes: Mapping[Job, Outcome]) -> None:
        """Take in the outcomes so far."""
        for job in self._jobs:
            if job in outcomes and job not in self._said:
                self._said.add(job)
                ending, message = outcomes[job]
                if ending is not Ending.SKIPPED:
                    self._line(f"{job.label}: {ending.value}{': ' if message else ''}{message}")
        now = time.time()
        if self._console.is_terminal:
            if now - self._drawn > _STALE_SECONDS:
                self._drawn = now
                self._live.update(self._table(outcomes), refresh=True)
        elif now - self._lined > _LINE_SECONDS:
            self._lined = now
            self._line(self._progress(outcomes))

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _progress(self, outcomes: Mapping[Job, Outcome]) -> str:
        active = [
            f"{job.label} {status.get('epoch', 0)}/{status.get('epochs', '?')}"
            for job in self._jobs
            if job not in outcomes and (status := self._status(job))
        ]
        text = f"{len(outcomes)} of {len(self._jobs)} runs ended"
        return f"{text}; at work: {', '.join(active)}" if active else text

    def _status(self, job: Job) -> dict[str, Any]:
        """What its worker said, if it said so since this plan began."""
        status = Place(job.folder).status()
        return status if status.get("time", 0) >= self._began else {}

    def _table(self, outcomes: Mapping[Job, Outcome]) -> Table:
        table = Table(title=f"{len(outcomes)} of {len(self._jobs)} runs ended")
        for name in ("run", "state", "epoch", "phase", "validation", "best", "left"):
            table.add_column(name, justify="left" if name in ("run", "state") else "right")
        rows = [job for job in self._jobs if job not in outcomes and self._status(job)]
        recent = [job for job in outcomes if outcomes[job].ending is not Ending.SKIPPED]
        for job in [*recent[-8:], *rows]:
            status = self._status(job) or Place(job.folder).status()
            state = outcomes[job].ending.value if job in outcomes else str(status["state"])
            epoch, epochs = int(status.get("epoch", 0)), int(status.get("epochs", 0))
            seconds = status.get("seconds")
            left = float(seconds) * (epochs - epoch) if seconds is not None else None
            table.add_row(
                job.label,
                Text(state, style=_COLOURS.get(state, "white")),
                f"{epoch}/{epochs}",
                str(status.get("phase", "")),
                _number(status.get("score")),
                _number(status.get("best")),
                "" if job in outcomes else duration(left),
            )
        waiting = len(self._jobs) - len(outcomes) - len(rows)
        table.caption = f"{waiting} waiting; {duration(time.time() - self._began)} so far"
        return table


def _number(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, (int, float)) else ""
