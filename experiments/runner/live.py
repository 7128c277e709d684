"""A plan in a terminal: what it is, what it will cost, how it goes, how it ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live

from experiments.methods.bayesagg_options import BayesAggOptions
from experiments.run import Run
from experiments.runner.estimate import Cost
from experiments.runner.plan import Job, configurations
from experiments.runner.store import Place, State
from experiments.runner.values import shown
from experiments.runner.worker import Ending, JobOutcome
from experiments.tables.render import terminal
from experiments.tables.table import Cell, Column, Row, Table

_COLUMNS = 5  # options that fit side by side
_LINE_SECONDS = 60.0
_STALE_SECONDS = 2.0
_LIVE = (
    *(Column(name, words=True) for name in ("state", "epoch", "phase")),
    *map(Column, ("validation", "best", "left")),
)


def duration(seconds: float | None) -> str:
    """``"45 s"``, ``"12 min"``, ``"3.4 h"``; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_table(jobs: Sequence[Job], cost: Cost | None) -> Table:
    """One row for each configuration: what differs, how far its runs are, what is left to pay."""
    groups = configurations(jobs)
    runs = [group[0].run for group in groups]
    methods, options, read = [r.method for r in runs], [*map(_options, runs)], [*map(_read, runs)]
    varied = _varied(methods, options)
    labels = [group[0].configuration if group[0].title else group[0].run.method for group in groups]
    words = {} if labels == methods else {"method": methods}
    if len(varied) > _COLUMNS:  # too many to stand side by side
        first = dict(reversed([*zip(methods, options, strict=True)]))
        told = [_from(first[method], own) for method, own in zip(methods, read, strict=True)]
        labels = [": ".join(filter(None, pair)) for pair in zip(labels, told, strict=True)]
    else:
        words |= {name: [shown(own.get(name, "")) for own in read] for name in varied}
    rows = []
    for place, (group, label) in enumerate(zip(groups, labels, strict=True)):
        states = Counter(Place(job.folder).state() for job in group)
        left = None if cost is None else sum(cost.seconds.get(job) or 0.0 for job in group)
        counts = (len(group), states[State.DONE], states[State.STARTED])
        cells = [Cell(text=texts[place]) for texts in words.values()]
        cells += [Cell(n, decimals=0) for n in (*counts, group[0].run.settings.epochs)]
        cells += [] if cost is None else [Cell(text=duration(left))]
        rows.append(Row(label, tuple(cells)))
    columns = [Column(name, words=True) for name in words]
    columns += map(Column, ("seeds", "done", "begun", "epochs"))
    columns += [] if cost is None else [Column("left")]
    notes = []
    if cost is not None:
        notes.append(
            f"about {duration(cost.wall)} with {cost.parallel} side by side "
            f"({duration(cost.work)} of work), from a few steps of each method"
        )
        unknown = sum(value is None for value in cost.seconds.values())
        if unknown:
            notes.append(f"{unknown} runs could not be tried")
    return Table(
        "plan",
        f"{len(jobs)} run{'s' * (len(jobs) != 1)}",
        tuple(columns),
        tuple(rows),
        tuple(notes),
    )


def _options(run: Run) -> dict[str, Any]:
    """Everything that was chosen, but for the seed and what has columns of its own."""
    said = run.describe()
    parts = (said["benchmark"]["options"], said["settings"], said["method"]["options"])
    found = {name: value for part in parts for name, value in part.items()}
    return {name: v for name, v in found.items() if name not in ("seed", "split_seed", "epochs")}


def _read(run: Run) -> dict[str, Any]:
    """The same, with "" for what the run does not read."""
    unread = run.options.unread() if isinstance(run.options, BayesAggOptions) else ()
    return _options(run) | dict.fromkeys(unread, "")


def _varied(methods: Sequence[str], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that differ between configurations of one method."""
    seen: dict[tuple[str, str], list[Any]] = {}
    for method, own in zip(methods, options, strict=True):
        for name, value in own.items():
            values = seen.setdefault((method, name), [])
            if value not in values:
                values.append(value)
    return list(dict.fromkeys(name for (_, name), values in seen.items() if len(values) > 1))


def _from(first: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What differs from another configuration, as words."""
    return ", ".join(
        f"{name} {shown(value)}"
        for name, value in own.items()
        if value not in ("", first.get(name, value))
    )


def summary(outcomes: Mapping[Job, JobOutcome]) -> str:
    """How many ended how."""
    counted = Counter(outcome.ending for outcome in outcomes.values())
    told = [f"{counted[ending]} {ending.value}" for ending in Ending if counted[ending]]
    others = Counter(
        said for ending, said in outcomes.values() if ending is Ending.SKIPPED and said
    )
    return ", ".join([*told, *(f"{count} of these {said}" for said, count in others.items())])


class Watcher:
    """Shows how the jobs go: a live table for a person, lines for a log."""

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

    def __call__(self, outcomes: Mapping[Job, JobOutcome]) -> None:
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
                self._live.update(terminal(self._table(outcomes)), refresh=True)
        elif now - self._lined > _LINE_SECONDS:
            self._lined = now
            self._line(self._progress(outcomes))

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _progress(self, outcomes: Mapping[Job, JobOutcome]) -> str:
        active = [
            f"{job.label} {status.get('epoch', 0)}/{status.get('epochs', '?')}"
            for job in self._jobs
            if job not in outcomes and (status := self._status(job))
        ]
        ended = self._ended(outcomes)
        return f"{ended}; at work: {', '.join(active)}" if active else ended

    def _ended(self, outcomes: Mapping[Job, JobOutcome]) -> str:
        return f"{len(outcomes)} of {len(self._jobs)} runs ended"

    def _status(self, job: Job) -> dict[str, Any]:
        """What its worker said, if it said so since this plan began."""
        status = Place(job.folder).status()
        return status if status.get("time", 0) >= self._began else {}

    def _table(self, outcomes: Mapping[Job, JobOutcome]) -> Table:
        rows = []
        active = [job for job in self._jobs if job not in outcomes and self._status(job)]
        recent = [job for job in outcomes if outcomes[job].ending is not Ending.SKIPPED]
        for job in [*recent[-8:], *active]:
            status = self._status(job) or Place(job.folder).status()
            state = outcomes[job].ending.value if job in outcomes else str(status["state"])
            epoch, epochs = int(status.get("epoch", 0)), int(status.get("epochs", 0))
            seconds = status.get("seconds")
            left = float(seconds) * (epochs - epoch) if seconds is not None else None
            words = (f"{epoch}/{epochs}", str(status.get("phase", "")))
            cells = (
                Cell(text=state, bold=state == Ending.FAILED.value),
                *(Cell(text=word) for word in words),
                *(_number(status.get(name)) for name in ("score", "best")),
                Cell(text="" if job in outcomes else duration(left)),
            )
            rows.append(Row(job.label, cells))
        waiting = len(self._jobs) - len(outcomes) - len(active)
        said = f"{waiting} waiting; {duration(time.time() - self._began)} so far"
        return Table("live", self._ended(outcomes), _LIVE, tuple(rows), (said,))


def _number(value: object) -> Cell:
    return Cell(value, decimals=1) if isinstance(value, (int, float)) else Cell()
