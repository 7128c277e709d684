"""Methods side by side, ours beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import published, registry
from experiments.methods import METHODS, PAPER
from experiments.report.collect import Group, Setup, mean_std, title_of
from experiments.report.plans import DELTA_M, Measure, Plan
from experiments.scores.delta_m import delta_m
from experiments.tables.table import MISSING, NOT_RUN, Cell, Column, Row, Table, highlight
from experiments.training.results import contents

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


_STL = "STL"
_DIFFERENCE = (DELTA_M, "accuracy")  # measures that are compared with the paper's one by one


def build(
    name: str,
    plan: Plan,
    found: Mapping[str, Setup],
    single: Single | None = None,
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
    if plan.stacked:
        columns, rows = _stacked(measures, labels, own, theirs)
    else:
        columns, rows = _beside(plan, measures, labels, own, theirs, found)
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
    measures: Sequence[Measure],
    labels: Sequence[str],
    own: Mapping[Measure, Cells],
    theirs: Mapping[Measure, Cells],
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


def notes_of(plan: Plan, found: Mapping[str, Setup], single: Single | None) -> list[str]:
    """What a table's readers must know, benchmark by benchmark; arguments as for `build`."""
    notes = []
    for benchmark in dict.fromkeys(measure.benchmark for measure in plan.measures):
        setup, table = found.get(benchmark), published.find(benchmark)
        if setup is None:
            notes.append(f"{registry.find(benchmark).title}: not run.")
            continue
        title = setup.title
        count = " or ".join(f"{n:,}" for n in setup.examples) or "an unknown number of"
        paper = f" (the paper's: about {table.training_examples:,})" if table else ""
        seeds = sorted({len(group.records) for group in setup.groups.values()})
        runs = "1 seed" if seeds == [1] else f"{'/'.join(map(str, seeds))} seeds"
        notes.append(
            f"{title}, ours: {count} training examples{paper}; {setup.describe()}; {runs}; test "
            "split, best epoch on validation."
        )
        first = setup.records[0]
        notes.append(f"{title}, data of seed {first['settings']['seed']}: {contents(first)}.")
        if table and not setup.same_tasks:
            notes.append(f"{title}: these are not the paper's tasks, so its numbers are left out.")
        elif table and not setup.comparable:
            notes.append(
                f"{title}: this is not the paper's setup, so ours and the paper's do not compare."
            )
        notes += [
            f"{group.title}: the store holds seed {', '.join(map(str, group.repeated))} more than "
            "once; shown is the last in the order of folders."
            for group in setup.groups.values()
            if group.repeated
        ]
        notes += [
            f"{group.title}: best on validation of {group.tried} configurations."
            for group in setup.groups.values()
            if group.tried > 1
        ]
        if any(m.what == DELTA_M and m.benchmark == benchmark for m in plan.measures):
            own = single is not None and benchmark in single
            row = "our STL runs" if own else setup.records[0].get("single_task_source")
            without = "no STL runs in this setup, so " if single is not None and not own else ""
            notes.append(f"{title}: {without}Δm of ours is relative to {row}.")
        if table and setup.same_tasks:
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
