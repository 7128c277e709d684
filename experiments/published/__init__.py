"""Numbers from publications, kept as data with their source.

The files hold what was printed. Known misprints are listed beside the numbers, and are mended when
a table is read; the printed value stays available.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.errors import DataError
from experiments.files.reading import json_file

_FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Erratum:
    """A misprint in a published table.

    Attributes:
        row: Name of the method.
        task: Name of the task, or ``"delta_m"``.
        printed: The value in the publication.
        corrected: The value in ``Row.values`` (or ``Row.delta_m``).
        reason: How it is known.
    """

    row: str
    task: str
    printed: float
    corrected: float
    reason: str


@dataclass(frozen=True)
class Doubt:
    """A row whose Δm does not follow from its numbers, where nobody can say which is wrong.

    Attributes:
        row: Name of the method.
        printed: Δm in the publication, which stands in ``Row.delta_m``.
        recomputed: Δm of the row's numbers.
        reason: How far apart they can be, and what is done about it.
    """

    row: str
    printed: float
    recomputed: float
    reason: str


@dataclass(frozen=True)
class Row:
    """Results of one method.

    Attributes:
        values: One number per task, errata mended.
        delta_m: Printed Δm in per cent, or None for the single-task row.
        delta_m_std: Its printed standard deviation over seeds.
        stds: Printed standard deviations of ``values``; empty when none are printed.
        bold: Tasks (or ``"delta_m"``) that are printed in bold.
    """

    values: tuple[float, ...]
    delta_m: float | None
    delta_m_std: float | None
    stds: tuple[float, ...] = ()
    bold: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Table:
    """A published comparison, whose file tells its title and source as well.

    Attributes:
        higher_is_better: Whether a larger number is better, per task.
        tasks: Names of the tasks, in order.
        symbols: Their names in print.
        units: Unit of each task's number.
        factors: Printed number per number that the benchmark reports.
        training_examples: About how many examples the networks were trained on.
        trained_tasks: How many tasks they were trained for; more than ``tasks`` where the table
            has one number for all.
        single_task: The single-task row to measure Δm against, with all published digits; empty
            where none is published.
        single_task_source: Where that row is from.
        rows: By name, in the printed order; the first is the rounded single-task row.
        errata: What was mended in ``rows``.
        doubts: What does not fit in ``rows``, and was left as it is.
    """

    higher_is_better: tuple[bool, ...]
    tasks: tuple[str, ...]
    symbols: tuple[str, ...]
    units: tuple[str, ...]
    factors: tuple[float, ...]
    training_examples: int
    trained_tasks: int
    single_task: tuple[float, ...]
    single_task_source: str
    rows: Mapping[str, Row]
    errata: tuple[Erratum, ...]
    doubts: tuple[Doubt, ...] = ()


def names() -> list[str]:
    """Benchmarks that a published table is kept of."""
    return sorted(file.stem for file in _FOLDER.glob("*.json"))


def find(name: str) -> Table | None:
    """The table of a benchmark; None where nothing is published."""
    return load(name) if name in names() else None


@functools.cache
def load(name: str) -> Table:
    """Read a table.

    Raises:
        DataError: There is no table of that name, or its file is not in order.
    """
    if name not in names():
        raise DataError(f"no published table {name!r}; there are {', '.join(names())}")
    path = _FOLDER / f"{name}.json"
    try:
        return parse(json_file(path, "restore it"))
    except (ValueError, KeyError, TypeError) as error:
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
    stds = {name: [float(v) for v in row.get("stds", ())] for name, row in record["rows"].items()}
    delta = {name: row.get("delta_m") for name, row in record["rows"].items()}
    single = record.get("single_task", {"values": (), "source": "none is published"})
    factors = [float(factor) for factor in record.get("factors", [1.0] * len(tasks))]
    better = record["higher_is_better"]
    better = [better] * len(tasks) if isinstance(better, bool) else better
    every = {**values, "units": record["units"], "symbols": record["symbols"]}
    some = {f"stds of {name}": row for name, row in stds.items() if row}
    single_row = {"single_task": single["values"]} if single["values"] else {}
    for name, entries in {**every, **some, **single_row, "directions": better}.items():
        if len(entries) != len(tasks):
            raise ValueError(f"{name} has {len(entries)} entries for {len(tasks)} tasks")
    errata = tuple(Erratum(**entry) for entry in record["errata"])
    for erratum in errata:
        row: Any
        place: Any
        row, place = (
            (delta, erratum.row)
            if erratum.task == "delta_m"
            else (values[erratum.row], tasks.index(erratum.task))
        )
        if row[place] != erratum.printed:
            raise ValueError(f"the erratum of {erratum.row} {erratum.task} does not fit the table")
        row[place] = erratum.corrected
    return Table(
        higher_is_better=tuple(better),
        tasks=tasks,
        symbols=tuple(record["symbols"]),
        units=tuple(record["units"]),
        factors=tuple(factors),
        training_examples=int(record["training_examples"]),
        trained_tasks=int(record.get("trained_tasks", len(tasks))),
        single_task=tuple(float(v) for v in single["values"]),
        single_task_source=single["source"],
        rows={
            name: Row(
                tuple(values[name]),
                delta[name],
                row.get("delta_m_std"),
                tuple(stds[name]),
                frozenset(row.get("bold", ())),
            )
            for name, row in record["rows"].items()
        },
        errata=errata,
        doubts=tuple(Doubt(**entry) for entry in record.get("doubts", ())),
    )


@functools.cache
def other(name: str) -> Mapping[str, Any]:
    """A table that is no comparison of metrics task by task: ``ensembles`` or ``run_time``.

    Raises:
        DataError: There is no such table, or its file is not in order.
    """
    path = _FOLDER / "other" / f"{name}.json"
    try:
        found: Mapping[str, Any] = json_file(path, "restore it")
    except DataError as error:
        raise DataError(f"no published table {name!r} in order: {error}") from error
    return found
