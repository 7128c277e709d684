"""Numbers from publications, kept as data with their source.

The files hold what was printed. Known misprints are listed beside the numbers, and are mended when
a table is read; the printed value stays available.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.errors import DataError

__all__ = ["QM9_SINGLE_TASK", "QM9_SOURCE", "Erratum", "Row", "Table", "load"]

_FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Erratum:
    """A misprint in a published table.

    Attributes:
        row: Name of the method.
        task: Name of the task.
        printed: The value in the publication.
        corrected: The value in ``Row.values``.
        reason: How it is known.
    """

    row: str
    task: str
    printed: float
    corrected: float
    reason: str


@dataclass(frozen=True)
class Row:
    """Results of one method.

    Attributes:
        name: The method.
        values: One number per task, errata mended.
        delta_m: Printed Δm in per cent, or None for the single-task row.
        delta_m_std: Its printed standard deviation over seeds.
    """

    name: str
    values: tuple[float, ...]
    delta_m: float | None
    delta_m_std: float | None


@dataclass(frozen=True)
class Table:
    """A published comparison.

    Attributes:
        title: What it shows.
        metric: Name of the number per task.
        higher_is_better: Whether a larger number is better.
        tasks: Names of the tasks, in order.
        units: Unit of each task's number.
        single_task: The single-task row to measure Δm against, with all published digits.
        single_task_source: Where that row is from.
        source: Where ``rows`` are from.
        rows: By name, in the printed order; the first is the rounded single-task row.
        errata: What was mended in ``rows``.
    """

    title: str
    metric: str
    higher_is_better: bool
    tasks: tuple[str, ...]
    units: tuple[str, ...]
    single_task: tuple[float, ...]
    single_task_source: str
    source: str
    rows: Mapping[str, Row]
    errata: tuple[Erratum, ...]


@functools.cache
def load(name: str) -> Table:
    """Read a table.

    Raises:
        DataError: There is no table of that name, or its file is not in order.
    """
    known = sorted(file.stem for file in _FOLDER.glob("*.json"))
    if name not in known:
        raise DataError(f"no published table {name!r}; there are {', '.join(known)}")
    path = _FOLDER / f"{name}.json"
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not in order ({type(error).__name__}: {error}); restore it"
        ) from error


def parse(record: Mapping[str, Any]) -> Table:
    """Make a table from the content of a file.

    Raises:
        KeyError: An entry is missing.
        ValueError: Rows of different lengths, or an erratum that does not fit what was printed.
    """
    tasks = tuple(record["tasks"])
    values = {name: [float(v) for v in row["values"]] for name, row in record["rows"].items()}
    single = tuple(float(v) for v in record["single_task"]["values"])
    for name, row in {**values, "single_task": single, "units": record["units"]}.items():
        if len(row) != len(tasks):
            raise ValueError(f"{name} has {len(row)} entries for {len(tasks)} tasks")
    errata = tuple(Erratum(**entry) for entry in record["errata"])
    for erratum in errata:
        column = tasks.index(erratum.task)
        if values[erratum.row][column] != erratum.printed:
            raise ValueError(f"the erratum of {erratum.row} {erratum.task} does not fit the table")
        values[erratum.row][column] = erratum.corrected
    return Table(
        title=record["title"],
        metric=record["metric"],
        higher_is_better=bool(record["higher_is_better"]),
        tasks=tasks,
        units=tuple(record["units"]),
        single_task=single,
        single_task_source=record["single_task"]["source"],
        source=record["source"],
        rows={
            name: Row(name, tuple(values[name]), row.get("delta_m"), row.get("delta_m_std"))
            for name, row in record["rows"].items()
        },
        errata=errata,
    )


QM9_SINGLE_TASK: Final = load("qm9").single_task
QM9_SOURCE: Final = load("qm9").single_task_source
