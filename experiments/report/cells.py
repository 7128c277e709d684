"""Cells of the tables: our numbers and those in print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import published
from experiments.methods import METHODS, PAPER
from experiments.report.collect import Group, Setup, mean_std, title_of
from experiments.report.plans import DELTA_M, Measure
from experiments.report.table import MISSING, Cell
from experiments.scores.delta_m import delta_m

#: Method by its name in the paper's tables.
_IN_PRINT: Final[Mapping[str, str]] = {
    **{METHODS[name].title: name for name in PAPER},
    "BayesAgg-MTL": "bayesagg",
    "Ensemble (1024 heads)": "ensemble-heads",
    "Ensemble (10 networks)": "ensemble-networks",
}
_LABELS: Final = {method: label for label, method in _IN_PRINT.items()}

Cells = Mapping[str, Cell]
Single = Mapping[str, Sequence["float | None"]]


def own_cells(measure: Measure, found: Mapping[str, Setup], single: Single) -> dict[str, Cell]:
    """Our cells by label: the test split at the epoch that validation chose.

    Args:
        measure: Which number.
        found: The setup to show of each benchmark.
        single: Single-task row to take Δm against, by benchmark; else the records' own.
    """
    setup = found.get(measure.benchmark)
    cells: dict[str, Cell] = {}
    for key, group in (setup.groups if setup else {}).items():
        if measure.what == DELTA_M and key == "stl":
            cells[label_of(key)] = MISSING
            continue
        mean, std = mean_std(_values(group, measure, single.get(measure.benchmark)))
        decimals = Cell.number(mean).decimals if measure.decimals is None else measure.decimals
        cells[label_of(key)] = Cell(
            None if mean is None else mean * measure.factor,
            None if std is None else std * measure.factor,
            decimals,
            text="unknown",
        )
    return cells


def printed_cells(measure: Measure) -> dict[str, Cell]:
    """The paper's cells by label; none where it has no table."""
    cells: dict[str, Cell] = {}
    digits = measure.decimals or 0
    if measure.what == DELTA_M:
        for label, row in published.other("ensembles")["rows"].items():
            if measure.benchmark in row:
                mean, std = row[measure.benchmark]
                cells[label] = Cell(mean, std, digits)
    table = published.find(measure.benchmark)
    for label, printed in (table.rows if table else {}).items():
        mean, std = printed.delta_m, printed.delta_m_std
        if table is not None and measure.what in table.tasks:
            place = table.tasks.index(measure.what)
            mean, std = printed.values[place], printed.stds[place] if printed.stds else None
        if mean is not None:
            cells[label] = Cell(mean, std, digits, measure.what in printed.bold)
    return cells


def label_of(key: str) -> str:
    """Name in print of a method; ours where the paper has none."""
    return _LABELS.get(key, title_of(key))


def _values(
    group: Group, measure: Measure, single: Sequence[float | None] | None
) -> list[float | None]:
    """The measure of every seed."""
    if measure.what == DELTA_M and single is not None:
        return [_delta(record, single) for record in group.records]
    best = [record["best"] for record in group.records]
    if measure.what == DELTA_M:
        return [one["test_delta_m"] for one in best]
    return [{**one["test_figures"], **one["test"]}.get(measure.what) for one in best]


def _delta(record: Mapping[str, Any], single: Sequence[float | None]) -> float | None:
    values = [record["best"]["test"][task["name"]] for task in record["tasks"]]
    reference = [value for value in single if value is not None]
    if len(reference) < len(single) or any(value is None for value in values):
        return None
    higher = [task["higher_is_better"] for task in record["tasks"]]
    return delta_m(values, reference, higher)
