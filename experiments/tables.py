"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from experiments.classifier_calibration import tells_calibration
from experiments.escaping import terminal, visible

__all__ = ["comparison", "number", "single"]

Record = Mapping[str, Any]

_UNKNOWN = "–"


def single(record: Record) -> Table:
    """Test metrics of one run: best epoch, last epoch, and the two references."""
    best, last = record["best"], record["last"]
    columns = [
        (f"best epoch ({best['epoch']})", best),
        (f"last epoch ({last['epoch']})", last),
    ]
    return _table(record, columns, [])


def comparison(records: Sequence[Record]) -> Table:
    """Test metrics of several runs of one benchmark, at each run's best epoch on validation."""
    columns = [(record["title"], record["best"]) for record in records]
    footer = [
        ("best epoch", [str(record["best"]["epoch"]) for record in records]),
        ("ms per step", [_milliseconds(record) for record in records]),
        ("minutes of training", [f"{record['timing']['seconds'] / 60:.1f}" for record in records]),
    ]
    return _table(records[0], columns, footer)


def number(value: float | None) -> str:
    """About four significant digits, without exponents for everyday sizes; a dash for None."""
    if value is None:
        return _UNKNOWN
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 10:
        return f"{value:.2f}"
    if size >= 1:
        return f"{value:.3f}"
    return f"{value:.4f}"


def _table(
    record: Record,
    columns: Sequence[tuple[str, Record]],
    footer: Sequence[tuple[str, Sequence[str]]],
) -> Table:
    tasks, constant = record["tasks"], record["constant"]
    table = Table(
        title=terminal(f"Test {record['metric']}"), caption=_caption(record), title_justify="left"
    )
    table.add_column("task")
    table.add_column("unit")
    for name, _ in columns:
        table.add_column(terminal(name), justify="right", style="bold")
    table.add_column("predict the mean", justify="right")
    table.add_column("single task*", justify="right")
    for task in tasks:
        name = task["name"]
        values = [column["test"][name] for _, column in columns]
        table.add_row(
            terminal(task["symbol"]),
            terminal(task["unit"]),
            *map(number, values),
            number(constant["test"][name]),
            number(task["single_task"]),
        )
    table.add_section()
    for name, reference in constant["test_figures"].items():
        if tells_calibration(name):  # the report's
            continue
        values = [column["test_figures"][name] for _, column in columns]
        table.add_row(terminal(name), "%", *map(number, values), number(reference), _UNKNOWN)
    scores = [f"{column['test_score']:,.1f}" for _, column in columns]
    reference = "0.0" if record["score_name"] == "Δm" else _UNKNOWN
    score = terminal(record["score_name"])
    table.add_row(score, "%", *scores, f"{constant['test_score']:,.1f}", reference)
    for name, entries in footer:
        table.add_row(name, "", *entries, "", "")
    return table


def _caption(record: Record) -> Text:
    source, score = visible(record["single_task_source"]), visible(record["score_name"])
    if record["score_name"] != "Δm":
        return Text(f"{score}: lower is better.\n* {source}")
    return Text(
        "Δm: mean of the relative differences to networks trained for one task each; lower is "
        f"better.\n* published, all of the data: {source}"
    )


def _milliseconds(record: Record) -> str:
    """Time per step in the phase that the method is about: its last one."""
    phase = record["history"][-1]["phase"]
    return f"{1000 * record['timing']['seconds_per_step'][phase]:.1f}"
