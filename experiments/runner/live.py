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

from experiments.run import Run
from experiments.runner.estimate import Cost
from experiments.runner.plan import Job, configurations
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
    "out of time": "yellow",
}
_COLUMNS = 5  # options that fit side by side
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
    """One row for each configuration: what differs, how far its runs are, what is left to pay."""
    table = Table(title=f"{len(jobs)} runs", title_justify="left")
    groups = configurations(jobs)
    options = [_options(group[0].run) for group in groups]
    varied = _varied([group[0].run.method for group in groups], options)
    titled = any(job.title for job in jobs)
    together = len(varied) > _COLUMNS
    for name in (
        *("method", *(["entry"] if titled else [])),
        *(["what differs"] if together else varied),
    ):
        table.add_column(name, overflow="fold")
    for name in ("seeds", "done", "begun", "epochs", "time left"):
        table.add_column(name, justify="right")
    for group, own in zip(groups, options, strict=True):
        states = Counter(Place(job.folder).state() for job in group)
        left = None
        if cost is not None:
            left = sum(cost.seconds.get(job) or 0.0 for job in group)
        table.add_row(
            group[0].run.method,
            *([group[0].configuration] if titled else []),
            *([_from(options[0], own)] if together else _cells(own, varied)),
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


def _options(run: Run) -> dict[str, Any]:
    """Everything that was chosen, but for the seed and what has columns of its own."""
    said = run.describe()
    parts = (said["benchmark"]["options"], said["settings"], said["method"]["options"])
    found = {name: value for part in parts for name, value in part.items()}
    return {name: v for name, v in found.items() if name not in ("seed", "split_seed", "epochs")}


def _varied(methods: Sequence[str], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that differ between configurations of one method."""
    seen: dict[tuple[str, str], list[Any]] = {}
    for method, own in zip(methods, options, strict=True):
        for name, value in own.items():
            values = seen.setdefault((method, name), [])
            if value not in values:
                values.append(value)
    return list(dict.fromkeys(name for (_, name), values in seen.items() if len(values) > 1))


def _cells(own: Mapping[str, Any], varied: Sequence[str]) -> list[str]:
    return [_shown(own[name]) if name in own else "" for name in varied]


def _from(first: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What differs from another configuration, as words."""
    return ", ".join(
        f"{name} {_shown(value)}" for name, value in own.items() if first.get(name, value) != value
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


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
