"""Tables of single runs, at their best epoch on validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.scores.calibration import tells_calibration
from experiments.tables.table import MISSING, Cell, Column, Row, Table
from experiments.training.results import contents, training_examples

Record = Mapping[str, Any]


def single(record: Record) -> Table:
    """Test metrics of one run: best epoch, last epoch, and the two references."""
    best, last = record["best"], record["last"]
    columns = [(f"best epoch ({best['epoch']})", best), (f"last epoch ({last['epoch']})", last)]
    return _table(record, columns)


def comparison(records: Sequence[Record]) -> Table:
    """Test metrics of several runs of one benchmark."""
    footer = [
        Row("best epoch", _cells([record["best"]["epoch"] for record in records], 0)),
        Row("ms per step", _cells(map(_milliseconds, records), 1)),
        Row("minutes of training", _cells([r["timing"]["seconds"] / 60 for r in records], 1)),
    ]
    columns = [(record["title"], record["best"]) for record in records]
    counts = dict.fromkeys(map(training_examples, records))
    return _table(records[0], columns, footer, list(counts))


def _table(
    record: Record,
    columns: Sequence[tuple[str, Record]],
    footer: Sequence[Row] = (),
    counts: Sequence[int | None] = (),
) -> Table:
    constant, score = record["constant"], record["score_name"]
    rows = []
    for task in record["tasks"]:
        values = [column["test"][task["name"]] for _, column in columns]
        values += [constant["test"][task["name"]], task["single_task"]]
        label = f"{task['symbol']} ({task['unit']})".removesuffix(" ()")
        rows.append(Row(label, tuple(map(Cell.number, values))))
    rule = True
    for name, reference in constant["test_figures"].items():
        if tells_calibration(name):  # the report's
            continue
        values = [*(column["test_figures"][name] for _, column in columns), reference, None]
        rows.append(Row(f"{name} (%)", tuple(map(Cell.number, values)), rule))
        rule = False
    scores = [*(column["test_score"] for _, column in columns), constant["test_score"]]
    single_task = Cell(0.0, decimals=1) if score == "Δm" else MISSING
    rows.append(Row(f"{score} (%)", (*_cells(scores, 1), single_task), rule))
    empty = (Cell(), Cell())
    rows += [Row(row.label, (*row.cells, *empty)) for row in footer]
    heads = [*(name for name, _ in columns), "predict the mean", "single task*"]
    return Table(
        "runs",
        f"Test {record['metric']}",
        tuple(map(Column, heads)),
        tuple(rows),
        tuple(_notes(record, counts or [training_examples(record)])),
    )


def _cells(values: Iterable[float | None], decimals: int) -> tuple[Cell, ...]:
    return tuple(MISSING if v is None else Cell(v, decimals=decimals) for v in values)


def _notes(record: Record, counts: Sequence[int | None]) -> list[str]:
    told = " or ".join("unknown" if n is None else f"{n:,}" for n in counts)
    source, score = record["single_task_source"], record["score_name"]
    notes = [f"Data: {contents(record)}." if len(counts) == 1 else f"Training examples: {told}."]
    if score != "Δm":
        return [*notes, f"{score}: lower is better.", f"* {source}"]
    return [
        *notes,
        "Δm: mean of the relative differences to networks trained for one task each; lower is "
        "better.",
        f"* published, all of the data: {source}",
    ]


def _milliseconds(record: Record) -> float:
    """Time per step in the phase that the method is about: its last one."""
    phase = record["history"][-1]["phase"]
    return float(1000 * record["timing"]["seconds_per_step"][phase])
