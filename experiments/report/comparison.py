"""The paper's tables, ours beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.errors import DataError
from experiments.report.cells import Cells, better, heading, label_of, own_cells, printed_cells
from experiments.report.collect import Setup
from experiments.report.notes import notes_of
from experiments.report.plans import TABLES, Measure, Plan
from experiments.report.table import MISSING, NOT_RUN, Cell, Column, Row, Table, highlight

__all__ = ["build"]


def build(
    name: str,
    found: Mapping[str, Setup],
    single: Mapping[str, Sequence[float | None]] | None = None,
) -> Table:
    """A table of the paper.

    Args:
        name: One of :data:`TABLES`.
        found: The setup to show of each benchmark.
        single: Single-task rows from runs, by benchmark; None where they are not asked for.

    Raises:
        DataError: There is no table of that name.
    """
    if name not in TABLES:
        raise DataError(f"no table {name!r}: give one of {', '.join(TABLES)}, run-time")
    plan = TABLES[name]
    own = own_cells(plan, found, single or {})
    theirs = {m: printed_cells(m) for m in plan.measures}
    labels = [*plan.methods, *_others(plan, found)]
    make = _stacked if plan.stacked else _beside
    columns, rows = make(plan, labels, own, theirs)
    return Table(
        name, plan.title, tuple(columns), tuple(rows), tuple(notes_of(plan, found, single))
    )


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
        group = heading(measure, several=len({m.benchmark for m in plan.measures}) > 1)
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
        rows = highlight(rows, place, better(measure), ["STL"])
    return columns, rows


def _stacked(
    plan: Plan,
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
) -> tuple[list[Column], list[Row]]:
    """For each method a row of ours and a row of the paper's."""
    columns = [Column(heading(measure, several=False)) for measure in plan.measures]
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
        ours = highlight(ours, place, better(measure), ["STL, ours"])
    rows = []
    for label, row in zip(labels, ours, strict=True):
        rows.append(row)
        printed = tuple(theirs[m].get(label, MISSING) for m in plan.measures)
        if any(cell.mean is not None for cell in printed):
            rows.append(Row(f"{label}, paper", printed))
    return columns, rows


def _others(plan: Plan, found: Mapping[str, Setup]) -> list[str]:
    """Methods in the store that the paper's table does not have."""
    if plan is TABLES["ensembles"]:
        return []
    labels: dict[str, None] = {}
    for measure in plan.measures:
        setup = found.get(measure.benchmark)
        labels |= {label_of(key): None for key in (setup.groups if setup else {})}
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
