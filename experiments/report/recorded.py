"""What training steps looked like early and late: the lines of ``--record``, by task and method."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesagg_pyro.diagnostics import read
from experiments.report.collect import located, symbols
from experiments.report.comparison import label_of
from experiments.tables.table import MISSING, Cell, Column, Row, Table
from experiments.training.checkpoints import RECORD

_BY_TASK = {  # by title: the recorder's column, and a factor
    "training loss": ("loss", 1.0),
    "share of the update, %": ("share", 100.0),
    "signal to noise": ("snr", 1.0),
    "norm of the head": ("head_norm", 1.0),
    "moved by a batch": ("moved", 1.0),
}
_BY_STEP = {
    "effective tasks": ("effective_tasks", 1.0),
    "mean cosine": ("cosine_mean", 1.0),
    "smallest cosine": ("cosine_min", 1.0),
    "in conflict, %": ("conflict_max", 100.0),
    "effective rank": ("effective_rank", 1.0),
    "norm of the features": ("feature_norm", 1.0),
}
_NOTES = (
    "Early and late: means over the recorded steps of the first and of the last third of a run "
    "(of the Bayesian ones among them, where only those tell) and over seeds.",
    "Share of the update: of its squared length; signal to noise: of a task's gradients, median "
    "over examples; moved by a batch: distance from the prior's mean in its standard deviations; "
    "cosine: of two tasks' mean gradients; in conflict: examples of the worst pair of tasks whose "
    "gradients oppose each other by two standard deviations.",
)

Lines = Sequence[Mapping[str, Any]]


def recorded(folder: Path, warn: Callable[[str], object] = warnings.warn) -> list[Table]:
    """Two tables for each setup with recorded runs: of every method and task, and of the steps.

    Args:
        folder: The store.
        warn: Is told of every results file that cannot be read.

    Raises:
        SettingError: A record is damaged.
    """
    made = []
    for setup, folders in located(folder, RECORD, warn):
        by_task: list[Row] = []
        by_step: list[Row] = []
        for key, places in folders.items():
            title = label_of(key)
            seeds = [_thirds(lines) for place in places if (lines := read(place / RECORD))]
            if not seeds:
                continue
            tasks = task_columns(seeds[0][0], symbols(setup.groups[key].records[0]))
            for task, (column, symbol) in enumerate(tasks):
                cells = _cells(_BY_TASK, seeds, f"/{column}")
                by_task.append(Row(f"{title}: {symbol}", cells, rule=task == 0))
            by_step.append(Row(title, _cells(_BY_STEP, seeds, "")))
        for what, shown, rows in (("tasks", _BY_TASK, by_task), ("steps", _BY_STEP, by_step)):
            columns = tuple(Column(when, name) for name in shown for when in ("early", "late"))
            notes = _NOTES if what == "steps" else ()
            title = f"{setup.title}: {what} while training ({setup.describe()})"
            made.append(Table("record", title, columns, tuple(rows), notes))
    return made


def task_columns(lines: Lines, names: Sequence[str]) -> list[tuple[str, str]]:
    """Of each task what follows the slash in its columns, and its name in print."""
    found = [name.partition("/")[2] for name in lines[0] if name.startswith("loss/")]
    return list(zip(found, names if len(names) == len(found) else found, strict=True))


def _thirds(lines: Lines) -> tuple[Lines, Lines]:
    """The first and the last."""
    third = math.ceil(len(lines) / 3)
    return lines[:third], lines[-third:]


def _cells(
    shown: Mapping[str, tuple[str, float]], seeds: Sequence[Sequence[Lines]], end: str
) -> tuple[Cell, ...]:
    """Early and late of each."""
    cells = []
    for column, factor in shown.values():
        for lines in zip(*seeds, strict=True):
            values = [v for one in lines if (v := mean(one, f"{column}{end}")) is not None]
            cells.append(_number(factor * statistics.fmean(values)) if values else MISSING)
    return tuple(cells)


def mean(lines: Lines, column: str) -> float | None:
    """Over steps; None where no step told."""
    values = [line[column] for line in lines if line.get(column) is not None]
    return statistics.fmean(values) if values else None


def _number(value: float) -> Cell:
    """Two significant digits, but four behind the point at most."""
    return Cell(value, decimals=max(0, min(4, 1 - math.floor(math.log10(abs(value) or 10)))))
