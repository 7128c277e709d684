"""One table of a comparison: every task and Δm, mean and standard deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.benchmark import Task
from experiments.comparisons import Comparison
from experiments.comparisons.standings import (
    Standings,
    ahead,
    behind,
    differences,
    finished,
    standings,
)
from experiments.run import Run
from experiments.runner import Job
from experiments.runner.values import shown
from experiments.settings import require, resolve_device
from experiments.tables.table import MISSING, Cell, Column, Row, Table
from experiments.training.evaluation import evaluate_constant
from experiments.training.results import training_examples


def table(comparison: Comparison, jobs: Sequence[Job], show: Sequence[str] = ()) -> Table:
    """What is there, a row for each configuration; what is not finished is told below it.

    Args:
        comparison: What was compared.
        jobs: Its runs.
        show: Figures that belong to no task, or their first words, with a column each.

    Raises:
        SettingsError: A figure is in no finished run.
    """
    benchmark = jobs[0].run.benchmark
    score = benchmark.score_name
    columns = [f"{task.symbol} ({task.unit})".removesuffix(" ()") for task in benchmark.tasks]
    entries = {entry.label: entry for entry in comparison.entries}
    by_label, missing = finished(jobs)
    every = [one for found in by_label.values() for one in found]
    known = dict.fromkeys(name for one in every for name in one["best"]["test_figures"])
    figures = _asked(show, known) if every else []
    columns += [*figures, f"{score} %", f"{score} %, last epoch", "minutes a run", "seeds"]
    columns += [*(name.replace("_", " ") for name in comparison.tuned)]
    rows = {}
    titles = {job.configuration: job.title for job in jobs}
    for label, found in by_label.items():
        chosen = [Cell(text=shown(entries[label].changes[k])) for k in comparison.tuned]
        rows[label] = Row(titles[label], (*_cells(benchmark.tasks, figures, found), *chosen))
    examples = dict.fromkeys(map(training_examples, every))
    told = " or ".join("unknown" if n is None else f"{n:,}" for n in examples)
    told = f"Training examples: {told or 'no run is finished'}."
    made = Table(
        comparison.name,
        f"{comparison.name}: test {benchmark.metric} at the best validation epoch",
        tuple(map(Column, columns)),
        tuple(rows.values()),
        (comparison.about, told, *missing),
    )
    return made if comparison.ours is None else _league(made, rows, standings(comparison, jobs))


def require_figures(show: Sequence[str], run: Run) -> None:
    """Refuse figures that no run will have, before there are any; the data is loaded for it.

    Raises:
        SettingsError: A figure is none of the benchmark's.
        DataError: The data set is missing or damaged.
    """
    data = run.benchmark.load(resolve_device(run.settings.device))
    _asked(show, evaluate_constant(data, data.validation, run.settings.batch_size).figures)


def _asked(show: Sequence[str], known: Collection[str]) -> list[str]:
    """Figures by their names or first words: ``ECE`` are those of every task."""
    chosen: dict[str, None] = {}
    for name in show:
        fitting = [figure for figure in known if figure == name or figure.startswith(f"{name} ")]
        require(bool(fitting), "show", name, f"give one of {', '.join(known) or 'none'}")
        chosen |= dict.fromkeys(fitting)
    return list(chosen)


def _league(made: Table, rows: Mapping[str, Row], found: Standings) -> Table:
    """The same table sorted, and beside each row how it stands to ours."""
    scores = {row["label"]: row["scores"] for row in found["entries"]}
    ours = scores.get(found["ours"], {})
    sorted_rows = []
    for label, theirs in scores.items():
        more: tuple[Cell, ...] = (MISSING, MISSING)
        if label != found["ours"] and ours:
            more = (Cell(text=ahead(ours, theirs)), Cell.spread(differences(ours, theirs), 1))
        sorted_rows.append(replace(rows[label], cells=(*rows[label].cells, *more)))
    columns = (*made.columns, Column("ours ahead"), Column(f"{found['score']} − ours"))
    notes = (*made.notes, *behind(found))
    return replace(made, columns=columns, rows=tuple(sorted_rows), notes=notes)


def _cells(
    tasks: Sequence[Task], figures: Sequence[str], found: Sequence[Mapping[str, Any]]
) -> tuple[Cell, ...]:
    cells = []
    for task in tasks:
        values = [one["best"]["test"].get(task.name) for one in found]
        known = [value for value in values if value is not None]
        cells.append(Cell.number(statistics.fmean(known)) if known else MISSING)
    for name in figures:
        values = [one["best"]["test_figures"].get(name) for one in found]
        known = [value for value in values if value is not None]
        decimals = Cell.number(statistics.fmean(known)).decimals if known else 0
        cells.append(Cell.spread(known, min(decimals, 3)))
    scores = [[one[part]["test_score"] for one in found] for part in ("best", "last")]
    minutes = statistics.fmean(one["timing"]["seconds"] / 60 for one in found)
    return (
        *cells,
        *(Cell.spread(some, 1) for some in scores),
        Cell(minutes, decimals=1 if minutes >= 1 else 2),
        Cell(text=_ranges([one["settings"]["seed"] for one in found])),
    )


def _ranges(seeds: Sequence[int]) -> str:
    """``0, 1, 5–9``: three or more in a row are written by their ends."""
    told: list[str] = []
    rest = [*seeds]
    while rest:
        last = next(k for k in range(len(rest)) if rest[k + 1 : k + 2] != [rest[k] + 1])
        several = last >= 2
        told += [f"{rest[0]}–{rest[last]}"] if several else map(str, rest[: last + 1])
        rest = rest[last + 1 :]
    return ", ".join(told)
