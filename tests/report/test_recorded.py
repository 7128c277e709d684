"""The table of recorded steps: which steps, which tasks, which numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.report.write import tables
from experiments.training.checkpoints import RECORD
from tests.report.records import record, store

TASKS = {"number": 0.1, "odd": 95.0, "loop": 95.0, "digit": 95.0}


def lines(offset: float) -> str:
    """Two steps of warm-up and six Bayesian ones; a third is three of the eight."""
    rows = [
        {"step": step, "loss/regression": offset + step}
        | {"loss/binary.0": 0.0, "loss/binary.1": None, "loss/classes": 1e-5 * step}
        | ({"share/regression": 0.25, "effective_tasks": 2.0 + step} if step > 1 else {})
        for step in range(8)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_medians_of_the_thirds_and_means_over_seeds(tmp_path: Path) -> None:
    place = store(tmp_path, [record("bayesagg", s, TASKS, benchmark="digits") for s in (0, 1)])
    for number in (0, 1):
        (place / f"{number}" / RECORD).write_text(lines(10.0 * number))
    tasks, steps = tables(place, ["record"])
    columns = [f"{column.group}, {column.title}" for column in tasks.columns]
    shown = {row.label: dict(zip(columns, map(str, row.cells), strict=True)) for row in tasks.rows}
    number = shown["BayesAgg-MTL: number"]
    assert number["training loss, early"] == "6.0"  # 1 and 11
    assert number["training loss, late"] == "11"  # 6 and 16
    assert number["share of the update, %, late"] == "25"
    assert number["signal to noise, late"] == "–"
    assert shown["BayesAgg-MTL: odd"]["training loss, late"] == "0"
    assert shown["BayesAgg-MTL: loop"]["training loss, late"] == "–"
    assert (
        shown["BayesAgg-MTL: digit"]["training loss, late"] == "0.0001"
    )  # 6e-5, to four digits behind the point
    assert str(steps.rows[0].cells[0]) == "4.0"  # of the one Bayesian step in the first third
    assert str(steps.rows[0].cells[1]) == "8.0"


def test_trials_and_runs_without_a_record_are_left_out(tmp_path: Path) -> None:
    place = store(tmp_path, [record("ls", 0, TASKS, benchmark="digits")])
    store(place / "trials", [record("ls", 5, TASKS, benchmark="digits")])
    (place / "trials" / "0" / RECORD).write_text(lines(0.0))
    assert tables(place, ["record"]) == []


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    place = store(tmp_path, [record("ls", 0, TASKS, benchmark="digits")])
    (place / "0" / RECORD).write_text("{\n")
    with pytest.raises(ValueError, match="damaged"):
        tables(place, ["record"])
