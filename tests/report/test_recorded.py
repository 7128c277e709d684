"""The table of recorded steps: which steps, which tasks, which numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.report import shares
from experiments.report.write import tables
from experiments.training.checkpoints import RECORD
from tests.report.records import record, store

TASKS = {"number": 0.1, "odd": 95.0, "loop": 95.0, "digit": 95.0}


def shared(step: int) -> dict[str, float]:
    """What Bayesian steps alone tell."""
    names = ("regression", "binary.0", "binary.1", "classes")
    columns = {f"{what}/{name}": 0.25 for name in names for what in ("share", "snr")}
    steps = {"cosine_mean": 0.1, "cosine_min": -0.1 * step, "conflict_max": 0.0}
    return {**columns, **steps, "effective_tasks": 2.0 + step}


def lines(offset: float) -> str:
    """Two steps of warm-up and six Bayesian ones; a third is three of the eight."""
    rows = [
        {"step": step, "epoch": 1 + step // 4, "loss/regression": offset + step}
        | {"loss/binary.0": 0.0, "loss/binary.1": None, "loss/classes": 1e-5 * step}
        | (shared(step) if step > 1 else {})
        for step in range(8)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_means_over_thirds_and_seeds(tmp_path: Path) -> None:
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
    assert number["norm of the head, late"] == "–"
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
    told = CliRunner().invoke(app, ["report", str(place), "--table", "record"]).output
    assert "for record none with --record" in told


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    place = store(tmp_path, [record("ls", 0, TASKS, benchmark="digits")])
    (place / "0" / RECORD).write_text("{\n")
    with pytest.raises(ValueError, match="damaged"):
        tables(place, ["record"])


def test_figure_and_its_numbers(tmp_path: Path) -> None:
    place = store(tmp_path / "store", [record("bayesagg", 0, TASKS, benchmark="digits")])
    (place / "0" / RECORD).write_text(lines(0.0))
    store(place / "ls", [record("ls", 0, TASKS, benchmark="digits")])  # without a record
    out = tmp_path / "out"
    asked = [f"{place}", "--table", "record", "--format", "md", "--out", f"{out}"]
    found = CliRunner().invoke(app, ["report", *asked])
    assert found.exit_code == 0, found.output
    assert "share of the update" in (out / "report.md").read_text()
    assert (out / "figures" / "record.png").stat().st_size > 10_000
    (row,) = json.loads((out / "figures" / "record.json").read_text())["rows"]
    assert row["tasks"] == ["number", "odd", "loop", "digit"]
    assert row["epochs"] == [1, 2]
    assert row["share number"] == [0.25, 0.25]
    assert row["cosine_min"] == pytest.approx([-0.25, -0.55])  # of steps 2 and 3, and 4 to 7
    assert shares.shares(place / "ls", print) == []
