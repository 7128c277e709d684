"""Cells of the tables: our numbers and those in print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import published
from experiments.methods import METHODS, PAPER
from experiments.metrics import delta_m
from experiments.report.collect import Group, Setup, mean_std, title_of
from experiments.report.plans import Measure, Plan
from experiments.report.table import Cell
from experiments.runner import BENCHMARKS

__all__ = [
    "IN_PRINT",
    "Cells",
    "better",
    "heading",
    "label_of",
    "measures_of",
    "own_cells",
    "printed_cells",
]

#: Method by its name in the paper's tables.
IN_PRINT: Final[Mapping[str, str]] = {
    **{METHODS[name].title: name for name in PAPER},
    "BayesAgg-MTL": "bayesagg",
    "Ensemble (1024 heads)": "ensemble-heads",
    "Ensemble (10 networks)": "ensemble-networks",
}


def measures_of(
    group: Group, measure: Measure, single: Sequence[float | None] | None
) -> list[float | None]:
    """The measure of every seed, on the test split at the epoch that validation chose.

    Args:
        group: The runs.
        measure: Which number.
        single: Single-task row to take Δm against; the records' own when None.
    """
    values: list[float | None] = []
    for record in group.records:
        best = record["best"]
        if measure.what == "delta_m":
            values.append(best["test_delta_m"] if single is None else _delta(record, single))
        else:
            values.append({**best["test_figures"], **best["test"]}.get(measure.what))
    return values


Cells = Mapping[str, Cell]


def own_cells(
    plan: Plan, found: Mapping[str, Setup], single: Mapping[str, Sequence[float | None]]
) -> dict[Measure, dict[str, Cell]]:
    """Our cells by measure and label."""
    table: dict[Measure, dict[str, Cell]] = {}
    for measure in plan.measures:
        cells: dict[str, Cell] = {}
        setup = found.get(measure.benchmark)
        for key, group in (setup.groups if setup else {}).items():
            values = measures_of(group, measure, single.get(measure.benchmark))
            mean, std = mean_std(values)
            factor = _factor(measure)
            cells[label_of(key)] = Cell(
                None if mean is None else mean * factor,
                None if std is None else std * factor,
                measure.decimals,
                text="unknown",
            )
        table[measure] = cells
    return table


def printed_cells(measure: Measure) -> dict[str, Cell]:
    """The paper's cells by label."""
    if measure.what == "delta_m":
        ensembles = published.other("ensembles")
        cells = {
            label: Cell(row[measure.benchmark][0], row[measure.benchmark][1], measure.decimals)
            for label, row in ensembles["rows"].items()
            if measure.benchmark in row
        }
    else:
        cells = {}
    if measure.benchmark == "digits":
        return cells
    table = published.load(measure.benchmark)
    for label, row in table.rows.items():
        mean: float | None
        std: float | None
        if measure.what == "delta_m":
            mean, std = row.delta_m, row.delta_m_std
        else:
            place = table.tasks.index(measure.what)
            mean, std = row.values[place], row.stds[place] if row.stds else None
        if mean is not None:
            cells[label] = Cell(mean, std, measure.decimals, measure.what in row.bold)
    return cells


def heading(measure: Measure, *, several: bool) -> str:
    """Title of a measure's columns; with the benchmark's where a table has several."""
    title = BENCHMARKS[measure.benchmark].title
    arrow = "↓" if better(measure)(0.0, 1.0) else "↑"
    if measure.what == "delta_m":
        text = f"Δm % {arrow}"
    elif measure.benchmark == "digits":
        text = f"{measure.what} {arrow}"
    else:
        table = published.load(measure.benchmark)
        place = table.tasks.index(measure.what)
        unit = f" ({table.units[place]})" if table.units[place] else ""
        text = f"{table.symbols[place]}{unit} {arrow}"
    return f"{title}: {text}" if several else text


def better(measure: Measure) -> Any:
    """Whether the first of two values of a measure is the better one, as a function."""
    higher = False
    if measure.what != "delta_m":
        if measure.benchmark == "digits":
            higher = measure.what != "number"
        else:
            table = published.load(measure.benchmark)
            higher = table.higher_is_better[table.tasks.index(measure.what)]
    return (lambda a, b: a > b) if higher else (lambda a, b: a < b)


def _factor(measure: Measure) -> float:
    if measure.what == "delta_m" or measure.benchmark == "digits":
        return 1.0
    table = published.load(measure.benchmark)
    return table.factors[table.tasks.index(measure.what)]


def label_of(key: str) -> str:
    """Name in print of a method; ours where the paper has none."""
    names = {method: label for label, method in IN_PRINT.items()}
    return names.get(key, title_of(key))


def _delta(record: Mapping[str, Any], single: Sequence[float | None]) -> float | None:
    values = [record["best"]["test"][task["name"]] for task in record["tasks"]]
    reference = [value for value in single if value is not None]
    if len(reference) < len(single) or any(value is None for value in values):
        return None
    higher = [task["higher_is_better"] for task in record["tasks"]]
    return delta_m(values, reference, higher)
