"""Comparisons: order of the runs, going on where they stopped, one table."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments import comparisons
from experiments.cli import app
from experiments.comparisons import Comparison, Entry
from experiments.comparisons.figure import curves, draw, recorded
from experiments.comparisons.table import _ranges, table
from experiments.comparisons.tuning import compared
from experiments.errors import CheckpointError, SettingsError
from experiments.methods import BayesAggOptions
from experiments.runner import Ending, Place, execute, work, worker
from experiments.tables.render import markdown
from experiments.tables.table import Cell
from experiments.training import CHECKPOINT, RESULTS, Trainer
from tests.experiments.toy import Toy
from tests.runner.jobs import Here

TOY = "tests.experiments.toy:Toy"


def comparison() -> Comparison:
    """Of a benchmark of one's own."""
    entries = [Entry("ls", "LS", "ls"), Entry("ba", "BayesAgg", changes={"pretrain": 2})]
    return Comparison("toys", "a toy", TOY, entries, {"threads": 1}, seeds=(0, 1))


def test_data_from_another_place(tmp_path: Path) -> None:
    cifar, qm9 = (
        compared(comparisons.find(name), tmp_path)[0].run.benchmark
        for name in ("cifar-small", "qm9-small")
    )
    assert qm9.at("built.npz").options()["data"] == "built.npz"
    assert cifar.at(str(tmp_path)).options()["source"] == "cifar10"
    (tmp_path / "train").mkdir()
    assert cifar.at(str(tmp_path)).options()["source"] == "folder"
    for said in ({}, {"source": "folder"}):  # what it is may be said, too
        (job,) = compared(
            comparisons.find("cifar-small"), tmp_path, only=["ls"], seeds=[0],
            changes={"data": str(tmp_path), **said},
        )  # fmt: skip
        assert job.run.benchmark.options()["source"] == "folder"
    with pytest.raises(SettingsError, match="reads none; leave it out"):
        Toy().at("somewhere")


def test_order_and_overrides(tmp_path: Path) -> None:
    jobs = compared(comparison(), tmp_path)
    assert [job.label for job in jobs] == ["ls/seed0", "ba/seed0", "ls/seed1", "ba/seed1"]
    assert [job.run.settings.seed for job in jobs] == [0, 0, 1, 1]
    twice = compared(comparison(), tmp_path, only=["ls", "ls"], seeds=[0, 1, 0])
    assert [job.label for job in twice] == ["ls/seed0", "ls/seed1"]  # not four of one, ± 0
    changes = {"epochs": "10", "learning_rate": 0.02, "power": "0.5"}
    (job,) = compared(comparison(), tmp_path, only=["ba"], seeds=[5], changes=changes)
    assert job.run.settings.epochs == 10
    assert job.run.settings.learning_rate == 0.02
    assert job.run.settings.device == "cpu"
    assert isinstance(job.run.options, BayesAggOptions)
    assert job.run.options.power == 0.5  # of the entries that have one
    assert job.run.options.pretrain == 5  # its share of the epochs
    with pytest.raises(SettingsError, match=r"only = 'x' is unknown .* give one of ls, ba"):
        compared(comparison(), tmp_path, only=["x"])
    with pytest.raises(SettingsError, match=r"powr = 1 has no meaning for method ls, bayesagg"):
        compared(comparison(), tmp_path, changes={"powr": 1})


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    jobs = compared(comparison(), tmp_path, seeds=[0])
    Trainer(jobs[0].run, jobs[0].folder).train()
    before = (jobs[0].folder / RESULTS).stat().st_mtime_ns
    outcomes = execute(jobs, Here, 2)
    assert [found.ending for found in outcomes.values()] == [Ending.SKIPPED, Ending.DONE]
    assert (jobs[0].folder / RESULTS).stat().st_mtime_ns == before


def test_one_table(tmp_path: Path) -> None:
    toys = comparison()
    jobs = compared(toys, tmp_path, changes={"epochs": 3})
    for job in jobs[:3]:
        Trainer(job.run, job.folder).train()
    made = table(toys, jobs)
    first, second = made.rows
    records = [json.loads((tmp_path / "ls" / f"seed{s}" / RESULTS).read_text()) for s in (0, 1)]
    best = [record["best"]["test_delta_m"] for record in records]
    assert [column.title for column in made.columns][3:] == [
        "Δm %", "Δm %, last epoch", "minutes a run", "seeds",
    ]  # fmt: skip
    assert first.cells[0].mean == pytest.approx(sum(r["best"]["test"]["sine"] for r in records) / 2)
    assert first.cells[3] == Cell.spread(best, 1)
    assert (first.cells[-1].text, second.cells[-1].text) == ("0, 1", "0")
    assert made.notes[1].startswith("Training examples: ")
    assert made.notes[2:] == ("BayesAgg, seed 1: 0/3 epochs",)
    assert "± " in markdown(made)
    assert _ranges([0, 1, 5, 6, 7, 9]) == "0, 1, 5–7, 9"
    assert str(Cell.spread([], 1)) == "–"
    assert str(Cell.spread([1.0, 3.0], 1)) == "2.0 ± 1.4"


@pytest.mark.usefixtures("undrawn")
def test_figures_of_scores_and_records(tmp_path: Path) -> None:
    jobs = compared(comparison(), tmp_path, seeds=[0], changes={"epochs": 3}, record=2)
    for job in jobs:
        assert work(job).ending is Ending.DONE
    (jobs[1].folder / RESULTS).unlink()  # an unfinished run is drawn as far as it goes
    figure = curves(jobs)
    scores = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]
    history = json.loads((jobs[0].folder / RESULTS).read_text())["history"]
    assert [line.get_label() for line in scores] == ["LS (1 seed)", "BayesAgg (1 seed)"]
    assert list(scores[0].get_ydata()) == [epoch["score"] for epoch in history]  # type: ignore[arg-type]
    found = draw(comparison(), jobs, tmp_path / "figure")
    assert [path.name for path in found] == ["figure.png", "figure-record.png"]
    league = dataclasses.replace(comparison(), ours="ba")  # of one seed, without a spread
    found = draw(league, jobs, tmp_path / "league")
    assert [path.name for path in found] == ["league.png", "league-record.png"]
    assert not (tmp_path / "league.json").exists()
    seen = {axes.get_title(): len(axes.lines) for axes in recorded(jobs).axes}
    assert seen["norm of the features"] == 2
    assert seen["effective number of tasks"] == 1  # LS has none


def test_the_catalogue_can_be_run(tmp_path: Path) -> None:
    for name, found in comparisons.COMPARISONS.items():
        jobs = compared(found, tmp_path)
        assert len(set(jobs)) == len(jobs) == len(found.entries) * len(found.seeds), name
        assert found.about
    (job,) = compared(comparisons.find("qm9-paper"), tmp_path, only=["paper-0.85"], seeds=[0])
    assert (job.run.settings.epochs, job.run.settings.schedule) == (300, "plateau")
    assert job.run.options == BayesAggOptions(pretrain=50, power=0.85, prior_variance=1e-3)
    assert {e.label for e in comparisons.find("qm9-small").entries} >= {"ls", "si", "paper"}
    with pytest.raises(SettingsError, match="comparison = 'qm9' is unknown"):
        comparisons.find("qm9")


def test_the_command(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        app,
        ["compare", "qm9-small", "--table-only", "--out", str(tmp_path)],
        env={"COLUMNS": "160"},
    )
    assert found.exit_code == 0, found.output
    assert "Δm" in found.output
    assert "0/200" in found.output
    wrong = CliRunner().invoke(app, ["compare", "nothing"])
    assert wrong.exit_code == 2
    assert "give one of demo, digits, qm9-small" in wrong.stderr


def test_minutes_are_for_everything_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LEAST", 0.3)
    first, second = compared(comparison(), tmp_path, seeds=[0], changes={"epochs": 100_000})
    deadline = time.time() + 1
    ending, message = work(first, 1, deadline)
    assert ending is Ending.STOPPED
    done = Place(first.folder).epochs()
    assert message == f"{done} of 100000 epochs"
    assert done > 0
    assert work(second, 1, deadline).ending is Ending.STOPPED
    assert not second.folder.exists()  # there was no time to begin


def test_finished_runs_with_other_settings_are_in_the_way(tmp_path: Path) -> None:
    """Neither counted as the plan's, nor shown under its caption."""
    toys = comparison()
    (short,) = compared(toys, tmp_path, only=["ls"], seeds=[0], changes={"epochs": 2})
    Trainer(short.run, short.folder).train()
    (planned,) = compared(toys, tmp_path, only=["ls"], seeds=[0])
    assert Place(planned.folder).differences(planned.run) == ["settings.epochs: 2 there, 4 here"]
    assert Place(short.folder).differences(short.run) == []
    made = table(toys, [planned])
    assert made.rows == ()
    assert made.notes[-1] == "LS, seed 0: other settings (settings.epochs: 2 there, 4 here)"


def test_an_option_of_a_later_version_counts_as_its_default(tmp_path: Path) -> None:
    """What an earlier version finished or began goes on; what it could not do is another run."""
    (job,) = compared(comparison(), tmp_path, only=["ba"], seeds=[0])
    Trainer(job.run, job.folder).train()
    for name, change in {RESULTS: _results_without, CHECKPOINT: _checkpoint_without}.items():
        change(job.folder / name, "noise")
    assert Place(job.folder).differences(job.run) == []
    Trainer(job.run, job.folder, resume=True)
    options = replace(job.run.options, noise="learned")
    other = replace(job, run=replace(job.run, options=options))
    told = "method.options.noise: 'unit' there, 'learned' here"
    assert Place(job.folder).differences(other.run) == [told]
    with pytest.raises(CheckpointError, match=r"options\.noise: 'unit' there, 'learned' here"):
        Trainer(other.run, job.folder, resume=True)


def _results_without(path: Path, option: str) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    del found["method"]["options"][option]
    path.write_text(json.dumps(found), encoding="utf-8")


def _checkpoint_without(path: Path, option: str) -> None:
    state = torch.load(path, weights_only=True)
    del state["identity"]["method"]["options"][option]
    torch.save(state, path)


def test_one_process_in_one_folder(tmp_path: Path) -> None:
    (job,) = compared(comparison(), tmp_path, only=["ls"], seeds=[0])
    with Place(job.folder).locked() as mine:
        assert mine
        assert work(job).ending is Ending.ELSEWHERE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/nowhere/at/all"], "there is no such file or folder"),
        (["--record", "0"], "give 1 or more steps"),
        (["--device", "foo"], "device"),
        (["--lr", "0"], "learning_rate = 0.0 cannot work"),
    ],
)
def test_bad_options_stop_before_any_run(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = ["compare", "cifar-small", "--out", str(tmp_path / "out"), *arguments]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 2
    assert message in found.stderr
    assert not (tmp_path / "out").exists()
