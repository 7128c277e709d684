"""Methods side by side, ours beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.cells import Cells, label_of, own_cells, printed_cells
from experiments.report.collect import Setup
from experiments.report.notes import notes_of
from experiments.report.plans import DELTA_M, Measure, Plan
from experiments.report.table import MISSING, NOT_RUN, Cell, Column, Row, Table, highlight

_STL = "STL"
_DIFFERENCE = (DELTA_M, "accuracy")  # measures that are compared with the paper's one by one


def build(
    name: str,
    plan: Plan,
    found: Mapping[str, Setup],
    single: Mapping[str, Sequence[float | None]] | None = None,
    *,
    everything: bool = False,
) -> Table:
    """A table of methods.

    Args:
        name: For files and labels.
        plan: What it shows.
        found: The setup to show of each benchmark.
        single: Single-task rows from runs, by benchmark; None where they are not asked for.
        everything: Also the rows and benchmarks of the paper's table that were not run.
    """
    measures = [m for m in plan.measures if everything or m.benchmark in found]
    own = {m: own_cells(m, found, single or {}) for m in measures}
    theirs = {m: _theirs(m, found) for m in measures}
    run = {label for cells in own.values() for label in cells}
    labels = [label for label in plan.methods if everything or label in run]
    labels += _others(plan, found)
    make = _stacked if plan.stacked else _beside
    columns, rows = make(plan, measures, labels, own, theirs, found)
    notes = notes_of(plan, found, single)
    return Table(name, plan.title, tuple(columns), tuple(rows), tuple(notes))


def _theirs(measure: Measure, found: Mapping[str, Setup]) -> Cells:
    """The paper's numbers, but for runs of other tasks."""
    setup = found.get(measure.benchmark)
    return printed_cells(measure) if setup is None or setup.same_tasks else {}


def _beside(
    plan: Plan,
    measures: Sequence[Measure],
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
    found: Mapping[str, Setup],
) -> tuple[list[Column], list[Row]]:
    """For each measure ours, the paper's and, where it means something, the difference."""
    several = len({m.benchmark for m in plan.measures}) > 1
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {label: [] for label in labels}
    best: list[tuple[int, Measure]] = []
    for measure in measures:
        setup = found.get(measure.benchmark)
        title = f"{setup.title}: {measure.title}" if several and setup else measure.title
        best.append((len(columns), measure))
        paper = theirs[measure]
        shown = measure.what in _DIFFERENCE and setup is not None and setup.comparable
        heads = ["ours", *(["paper"] if paper else []), *(["ours − paper"] if shown else [])]
        columns += [Column(head, title) for head in heads] if paper else [Column(title)]
        for label in labels:
            ours, printed = own[measure].get(label, NOT_RUN), paper.get(label, MISSING)
            cells[label] += [ours, printed, _difference(ours, printed)][: len(heads)]
    rows = [Row(label, tuple(cells[label]), _ruled(label, labels, plan)) for label in labels]
    for place, measure in best:
        rows = highlight(rows, place, measure.better, [_STL])
    return columns, rows


def _stacked(
    plan: Plan,
    measures: Sequence[Measure],
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
    found: Mapping[str, Setup],
) -> tuple[list[Column], list[Row]]:
    """For each method a row of ours and a row of the paper's."""
    ours = [
        Row(f"{label}, ours", tuple(own[m].get(label, NOT_RUN) for m in measures), rule=True)
        for label in labels
    ]
    for place, measure in enumerate(measures):
        ours = highlight(ours, place, measure.better, [f"{_STL}, ours"])
    rows = []
    for label, row in zip(labels, ours, strict=True):
        rows.append(row)
        printed = tuple(theirs[m].get(label, MISSING) for m in measures)
        if any(cell.mean is not None for cell in printed):
            rows.append(Row(f"{label}, paper", printed))
    return [Column(measure.title) for measure in measures], rows


def _others(plan: Plan, found: Mapping[str, Setup]) -> list[str]:
    """Methods in the store that the paper's table does not have."""
    if plan.closed:
        return []
    hidden = {*plan.methods, _STL}
    shown = [found[m.benchmark] for m in plan.measures if m.benchmark in found]
    labels = dict.fromkeys(label_of(key) for setup in shown for key in setup.groups)
    return [label for label in labels if label not in hidden]


def _ruled(label: str, labels: Sequence[str], plan: Plan) -> bool:
    others = [other for other in labels if other not in plan.methods]
    after_stl = labels[0] == _STL and label == labels[1]
    return label == "BayesAgg-MTL" or after_stl or bool(others and label == others[0])


def _difference(ours: Cell, paper: Cell) -> Cell:
    if ours.mean is None or paper.mean is None:
        return MISSING
    return Cell(ours.mean - paper.mean, decimals=ours.decimals, signed=True)
