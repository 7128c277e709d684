"""One table of a comparison: every task and Δm, mean and standard deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from experiments.benchmark import Benchmark
from experiments.comparisons import Comparison
from experiments.escaping import markdown as escaped
from experiments.escaping import terminal
from experiments.runner import Job, Place, State, configurations
from experiments.tables import number

__all__ = ["Row", "markdown", "rows", "table"]

_UNKNOWN = "–"
_COLUMNS = 5  # entries that fit side by side


@dataclass(frozen=True)
class Row:
    """Results of one entry.

    Attributes:
        title: For the table.
        seeds: Seeds that are finished.
        tasks: Test metric of each task at the best validation epoch, mean over seeds.
        best: Test score of each seed at its best validation epoch.
        last: Test score of each seed after the last epoch.
        minutes: Of training, mean over seeds.
        unfinished: What is still missing, for people.
    """

    title: str
    seeds: list[int]
    tasks: list[float | None]
    best: list[float]
    last: list[float]
    minutes: float | None
    unfinished: list[str]


def rows(jobs: Sequence[Job]) -> list[Row]:
    """What is there, configuration by configuration."""
    return [_row(group) for group in configurations(jobs)]


def table(comparison: Comparison, benchmark: Benchmark, found: Sequence[Row]) -> Table:
    """The rows for a terminal: entries as columns, or as lines where there are many."""
    if len(found) > _COLUMNS:
        return _long(comparison, benchmark.score_name, found)
    names = [(terminal(task.symbol), terminal(task.unit)) for task in benchmark.tasks]
    score = benchmark.score_name
    made = _empty(comparison, benchmark.metric)
    made.add_column("task")
    made.add_column("unit")
    for row in found:
        made.add_column(row.title, justify="right")
    for k, (symbol, unit) in enumerate(names):
        made.add_row(symbol, unit, *[number(row.tasks[k]) if row.seeds else "" for row in found])
    made.add_section()
    made.add_row(score, "%", *[spread(row.best) for row in found], style="bold")
    made.add_row(f"{score}, last epoch", "%", *[spread(row.last) for row in found])
    made.add_row("seeds", "", *[", ".join(map(str, row.seeds)) or "none" for row in found])
    times = [_UNKNOWN if row.minutes is None else f"{row.minutes:.1f}" for row in found]
    made.add_row("minutes a run", "", *times)
    if any(row.unfinished for row in found):
        made.add_row("unfinished", "", *["\n".join(row.unfinished) for row in found])
    return made


def _empty(comparison: Comparison, what: str) -> Table:
    return Table(
        title=f"{comparison.name}: test {what} at the best validation epoch",
        caption=comparison.about,
        title_justify="left",
    )


def _long(comparison: Comparison, score: str, found: Sequence[Row]) -> Table:
    """One line for each entry, without the tasks."""
    made = _empty(comparison, score)
    made.add_column("setting")
    for name in (f"{score} %", "last epoch", "seeds", "minutes"):
        made.add_column(name, justify="right", no_wrap=True)
    for row in found:
        seeds = ", ".join(map(str, row.seeds)) or "none"
        time = _UNKNOWN if row.minutes is None else f"{row.minutes:.1f}"
        made.add_row(row.title, spread(row.best), spread(row.last), seeds, time)
        for line in row.unfinished:
            made.add_row(f"  {line}", style="dim")
    return made


def markdown(benchmark: Benchmark, found: Sequence[Row]) -> str:
    """The rows for a page: tasks as columns."""
    score = benchmark.score_name
    symbols = [escaped(task.symbol) for task in benchmark.tasks]
    lines = [
        "| " + " | ".join(["", *symbols, f"{score} %", f"{score} %, last epoch", "seeds"]) + " |",
        "| --- " + "| ---: " * (len(symbols) + 3) + "|",
    ]
    for row in found:
        if row.seeds:
            cells = [*map(number, row.tasks), spread(row.best), spread(row.last)]
            lines.append(
                "| " + " | ".join([escaped(row.title), *cells, str(len(row.seeds))]) + " |"
            )
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation; the value alone for one seed, a dash for none."""
    if not values:
        return _UNKNOWN
    mean = f"{statistics.fmean(values):,.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):,.1f}"


def _row(jobs: Sequence[Job]) -> Row:
    records: list[dict[str, Any]] = []
    seeds: list[int] = []
    unfinished = []
    for job in jobs:
        place, seed = Place(job.folder), job.run.settings.seed
        other = place.differences(job.run)
        if other:
            unfinished.append(f"seed {seed}: other settings ({'; '.join(other)})")
        elif place.state() is State.DONE:
            records.append(place.load())
            seeds.append(seed)
        else:
            unfinished.append(f"seed {seed}: {place.epochs()}/{job.run.settings.epochs}")
    tasks: list[float | None] = []
    for task in jobs[0].run.benchmark.tasks:
        values = [found["best"]["test"].get(task.name) for found in records]
        known = [value for value in values if value is not None]
        tasks.append(statistics.fmean(known) if known else None)
    times = [found["timing"]["seconds"] / 60 for found in records]
    return Row(
        title=jobs[0].title,
        seeds=seeds,
        tasks=tasks,
        best=[found["best"]["test_score"] for found in records],
        last=[found["last"]["test_score"] for found in records],
        minutes=statistics.fmean(times) if times else None,
        unfinished=unfinished,
    )
