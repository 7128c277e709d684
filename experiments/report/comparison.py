"""The paper's tables, ours beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments import published
from experiments.errors import DataError
from experiments.methods import METHODS, PAPER
from experiments.metrics import delta_m
from experiments.report.collect import Group, Setup, mean_std, title_of
from experiments.report.table import MISSING, NOT_RUN, Cell, Column, Row, Table, highlight
from experiments.runner import BENCHMARKS

__all__ = ["TABLES", "Measure", "Plan", "build", "measures_of"]

#: Method by its name in the paper's tables.
IN_PRINT: Final[Mapping[str, str]] = {
    **{METHODS[name].title: name for name in PAPER},
    "BayesAgg-MTL": "bayesagg",
    "Ensemble (1024 heads)": "ensemble-heads",
    "Ensemble (10 networks)": "ensemble-networks",
}
_STL: Final = "stl"


@dataclass(frozen=True)
class Measure:
    """One number per run.

    Attributes:
        benchmark: Name of the benchmark.
        what: ``"delta_m"``, a task, or a figure.
        decimals: Digits after the point.
    """

    benchmark: str
    what: str
    decimals: int


@dataclass(frozen=True)
class Plan:
    """What a table shows.

    Attributes:
        title: Caption.
        measures: Its numbers, of one benchmark or of several.
        methods: Names in print of its rows, in order.
        stacked: Ours and the paper's one above the other, where there are many columns.
    """

    title: str
    measures: tuple[Measure, ...]
    methods: tuple[str, ...]
    stacked: bool = False


_ROWS: Final = tuple(published.load("qm9").rows)
_WITHOUT_STL: Final = _ROWS[1:]
_QM9_DECIMALS: Final = (3, 3, 2, 2, 3, 2, 2, 2, 2, 2, 3)

TABLES: Final[Mapping[str, Plan]] = {
    "qm9": Plan("QM9: Δm of test errors", (Measure("qm9", "delta_m", 1),), _WITHOUT_STL),
    "cifar-chest": Plan(
        "CIFAR-MTL: test accuracy; ChestX-ray14: Δm of test areas under the ROC curve",
        (Measure("cifar-mtl", "accuracy", 2), Measure("chestxray14", "delta_m", 2)),
        _WITHOUT_STL,
    ),
    "utkface": Plan(
        "UTKFace: test results",
        (
            Measure("utkface", "age", 2),
            Measure("utkface", "gender", 2),
            Measure("utkface", "ethnicity", 2),
            Measure("utkface", "delta_m", 2),
        ),
        _ROWS,
    ),
    "ensembles": Plan(
        "Δm against deep ensembles",
        (Measure("qm9", "delta_m", 1), Measure("utkface", "delta_m", 2)),
        tuple(published.other("ensembles")["rows"]),
    ),
    "qm9-full": Plan(
        "QM9: test errors of all tasks",
        (
            *(
                Measure("qm9", task, decimals)
                for task, decimals in zip(published.load("qm9").tasks, _QM9_DECIMALS, strict=True)
            ),
            Measure("qm9", "delta_m", 1),
        ),
        _ROWS,
        stacked=True,
    ),
    "chest-full": Plan(
        "ChestX-ray14: test areas under the ROC curve",
        (
            *(Measure("chestxray14", task, 4) for task in published.load("chestxray14").tasks),
            Measure("chestxray14", "delta_m", 2),
        ),
        _ROWS,
        stacked=True,
    ),
    "digits": Plan(
        "Digits: test results (not a benchmark of the paper)",
        (
            Measure("digits", "number", 3),
            Measure("digits", "odd", 2),
            Measure("digits", "loop", 2),
            Measure("digits", "digit", 2),
            Measure("digits", "delta_m", 2),
        ),
        _ROWS,
    ),
}


def measures_of(
    group: Group, measure: Measure, single: Sequence[float] | None
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
            values.append({**best["test_figures"], **best["test"]}[measure.what])
    return values


def build(
    name: str, found: Mapping[str, Setup], single: Mapping[str, Sequence[float]] | None = None
) -> Table:
    """A table of the paper.

    Args:
        name: One of :data:`TABLES`.
        found: The setup to show of each benchmark.
        single: Single-task rows from runs, by benchmark.

    Raises:
        DataError: There is no table of that name.
    """
    if name not in TABLES:
        raise DataError(f"no table {name!r}: give one of {', '.join(TABLES)}, run-time")
    plan = TABLES[name]
    own = _own(plan, found, single or {})
    theirs = {m: _printed(m) for m in plan.measures}
    labels = [*plan.methods, *_others(plan, found)]
    make = _stacked if plan.stacked else _beside
    columns, rows = make(plan, labels, own, theirs)
    return Table(name, plan.title, tuple(columns), tuple(rows), tuple(_notes(plan, found, single)))


Cells = Mapping[str, Cell]


def _own(
    plan: Plan, found: Mapping[str, Setup], single: Mapping[str, Sequence[float]]
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
            cells[_label(key)] = Cell(
                None if mean is None else mean * factor,
                None if std is None else std * factor,
                measure.decimals,
                text="unknown",
            )
        table[measure] = cells
    return table


def _printed(measure: Measure) -> dict[str, Cell]:
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


def _beside(
    plan: Plan,
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
) -> tuple[list[Column], list[Row]]:
    """For each measure ours, the paper's and, for Δm, the difference."""
    columns: list[Column] = []
    places: list[tuple[int, Measure]] = []
    for measure in plan.measures:
        places.append((len(columns), measure))
        group = _head(measure, several=len({m.benchmark for m in plan.measures}) > 1)
        columns.append(Column("ours", group))
        if theirs[measure]:
            columns.append(Column("paper", group))
            if measure.what in ("delta_m", "accuracy"):
                columns.append(Column("ours − paper", group))
    rows = []
    for label in labels:
        cells: list[Cell] = []
        for measure in plan.measures:
            ours = own[measure].get(label, NOT_RUN)
            if label == "STL" and measure.what == "delta_m":
                ours = MISSING
            cells.append(ours)
            if theirs[measure]:
                paper = theirs[measure].get(label, MISSING)
                cells.append(paper)
                if measure.what in ("delta_m", "accuracy"):
                    cells.append(_difference(ours, paper))
        rows.append(Row(label, tuple(cells), rule=_ruled(label, labels, plan)))
    for place, measure in places:
        rows = highlight(rows, place, _better(measure), ["STL"])
    return columns, rows


def _stacked(
    plan: Plan,
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
) -> tuple[list[Column], list[Row]]:
    """For each method a row of ours and a row of the paper's."""
    columns = [Column(_head(measure, several=False)) for measure in plan.measures]
    ours = [
        Row(
            f"{label}, ours",
            tuple(
                MISSING if label == "STL" and m.what == "delta_m" else own[m].get(label, NOT_RUN)
                for m in plan.measures
            ),
            rule=True,
        )
        for label in labels
    ]
    for place, measure in enumerate(plan.measures):
        ours = highlight(ours, place, _better(measure), ["STL, ours"])
    rows = []
    for label, row in zip(labels, ours, strict=True):
        rows.append(row)
        printed = tuple(theirs[m].get(label, MISSING) for m in plan.measures)
        if any(cell.mean is not None for cell in printed):
            rows.append(Row(f"{label}, paper", printed))
    return columns, rows


def _head(measure: Measure, *, several: bool) -> str:
    title = BENCHMARKS[measure.benchmark].title
    arrow = "↓" if _better(measure)(0.0, 1.0) else "↑"
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


def _better(measure: Measure) -> Any:
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


def _label(key: str) -> str:
    """Name in print of a method; ours where the paper has none."""
    names = {method: label for label, method in IN_PRINT.items()}
    return names.get(key, title_of(key))


def _others(plan: Plan, found: Mapping[str, Setup]) -> list[str]:
    """Methods in the store that the paper's table does not have."""
    if plan is TABLES["ensembles"]:
        return []
    labels: dict[str, None] = {}
    for measure in plan.measures:
        setup = found.get(measure.benchmark)
        labels |= {_label(key): None for key in (setup.groups if setup else {})}
    hidden = {"STL"} if "STL" not in plan.methods else set()
    return [label for label in labels if label not in plan.methods and label not in hidden]


def _ruled(label: str, labels: Sequence[str], plan: Plan) -> bool:
    others = labels[len(plan.methods) :]
    after_stl = labels[0] == "STL" and label == labels[1]
    return label == "BayesAgg-MTL" or after_stl or bool(others and label == others[0])


def _difference(ours: Cell, paper: Cell) -> Cell:
    if ours.mean is None or paper.mean is None:
        return MISSING
    return Cell(ours.mean - paper.mean, decimals=ours.decimals, signed=True)


def _delta(record: Mapping[str, Any], single: Sequence[float]) -> float | None:
    values = [record["best"]["test"][task["name"]] for task in record["tasks"]]
    if any(value is None for value in values):
        return None
    higher = [task["higher_is_better"] for task in record["tasks"]]
    return delta_m(values, single, higher)


def _notes(
    plan: Plan, found: Mapping[str, Setup], single: Mapping[str, Sequence[float]] | None
) -> list[str]:
    notes = []
    for benchmark in dict.fromkeys(measure.benchmark for measure in plan.measures):
        title = BENCHMARKS[benchmark].title
        setup = found.get(benchmark)
        if setup is None:
            notes.append(f"{title}: not run.")
            continue
        seeds = sorted({len(group.records) for group in setup.groups.values()})
        text = "1 seed" if seeds == [1] else f"{'/'.join(map(str, seeds))} seeds"
        notes.append(
            f"{title}, ours: {setup.describe()}; {text}; test split, best epoch on validation."
        )
        if not setup.as_published and benchmark != "digits":
            notes.append(f"{title}: this is not the paper's setup, so ours and the paper's differ.")
        searched = [g for g in setup.groups.values() if g.tried > 1]
        notes += [
            f"{group.title}: best on validation of {group.tried} configurations."
            for group in searched
        ]
        if any(measure.what == "delta_m" for measure in plan.measures):
            own = single is not None and benchmark in single
            row = "our STL runs" if own else BENCHMARKS[benchmark].single_task_source
            notes.append(f"{title}: Δm of ours is relative to {row}.")
        if benchmark != "digits":
            table = published.load(benchmark)
            notes += [
                f"{title}: {e.row} {e.task} is printed as {e.printed:g}; "
                f"shown is {e.corrected:g}, since {e.reason}."
                for e in table.errata
            ]
            notes += [
                f"{title}: Δm of {d.row} is printed as {d.printed:g}; {d.reason}."
                for d in table.doubts
            ]
    return notes
