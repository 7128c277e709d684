"""Comparisons: order of the runs, going on where they stopped, one table."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from experiments import compare as package
from experiments.cli import app
from experiments.compare import Comparison, Entry, rows, table, work
from experiments.compare.comparison import Job
from experiments.compare.figure import curves, draw, recorded
from experiments.compare.table import markdown, spread
from experiments.errors import CheckpointError, SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.settings import Settings
from experiments.training import CHECKPOINT, RESULTS, Trainer
from tests.experiments.toy import Toy

SETTINGS = Settings(epochs=4, batch_size=32, device="cpu")


def comparison() -> Comparison:
    entries = [
        Entry("ls", "LS", "ls", MethodOptions(), SETTINGS),
        Entry("ba", "BayesAgg", "bayesagg", BayesAggOptions(pretrain=2), SETTINGS),
    ]
    return Comparison("toys", "a toy", Toy(), entries, seeds=(0, 1))


def test_data_from_another_place(tmp_path: Path) -> None:
    cifar, qm9 = (package.find(name).benchmark for name in ("cifar-small", "qm9-small"))
    assert qm9.at("built.npz").options()["data"] == "built.npz"
    assert cifar.at(str(tmp_path)).options()["source"] == "cifar10"
    (tmp_path / "train").mkdir()
    assert cifar.at(str(tmp_path)).options()["source"] == "folder"
    with pytest.raises(SettingsError, match="reads none; leave it out"):
        Toy().at("somewhere")


def test_order_and_overrides() -> None:
    jobs = comparison().jobs()
    assert [(job.label, job.seed) for job in jobs] == [("ls", 0), ("ba", 0), ("ls", 1), ("ba", 1)]
    assert [job.run.settings.seed for job in jobs] == [0, 0, 1, 1]
    (job,) = comparison().jobs(["ba"], [5], epochs=10, device=None, learning_rate=0.02)
    assert job.run.settings.epochs == 10
    assert job.run.settings.learning_rate == 0.02
    assert job.run.settings.device == "cpu"
    assert isinstance(job.run.options, BayesAggOptions)
    assert job.run.options.pretrain == 5  # its share of the epochs
    with pytest.raises(SettingsError, match=r"only = 'x' is unknown .* give one of ls, ba"):
        comparison().jobs(["x"])


FAKE = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
tries = folder / "tries"
count = int(tries.read_text()) + 1 if tries.exists() else 1
tries.write_text(str(count))
if sys.argv[2] == "ba" and count == 1:
    sys.exit(3)
if sys.argv[2] == "broken":
    sys.exit(1)
(folder / "results.json").write_text(sys.argv[3])
"""


def test_what_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str, job: Job, out: Path, minutes: float | None) -> list[str]:
        real = tmp_path / "real" / name / job.folder
        if not (real / RESULTS).exists():
            Trainer(job.run, real).train()
        results = (real / RESULTS).read_text()
        return [sys.executable, "-c", FAKE, str(out / job.folder), job.label, results]

    monkeypatch.setattr(work, "command", fake)
    said: list[str] = []
    given: dict[str, Any] = {"minutes": None, "options": [], "say": said.append}
    jobs = comparison().jobs(seeds=[0])
    work.work("toys", jobs, tmp_path, at_once=2, **given)
    assert (tmp_path / "ls" / "seed0" / RESULTS).exists()
    assert not (tmp_path / "ba" / "seed0" / RESULTS).exists()
    assert any("stopped at 0 of 4 epochs" in line for line in said)
    work.work("toys", jobs, tmp_path, at_once=1, **given)
    assert (tmp_path / "ls" / "seed0" / "tries").read_text() == "1"
    assert (tmp_path / "ba" / "seed0" / "tries").read_text() == "2"
    broken = Job("broken", 0, jobs[0].run, Path("broken"))
    work.work("toys", [broken], tmp_path, at_once=1, **given)
    assert "failed" in said[-1]
    assert "log.txt" in said[-1]
    with pytest.raises(SettingsError, match="jobs = 0"):
        work.work("toys", jobs, tmp_path, at_once=0, **given)


def test_one_table(tmp_path: Path) -> None:
    toys = comparison()
    jobs = toys.jobs(epochs=3)
    for job in jobs[:3]:
        Trainer(job.run, tmp_path / job.folder).train()
    first, second = rows(toys, jobs, tmp_path)
    records = [json.loads((tmp_path / "ls" / f"seed{s}" / RESULTS).read_text()) for s in (0, 1)]
    assert first.best == [record["best"]["test_delta_m"] for record in records]
    assert first.seeds == [0, 1]
    assert first.tasks[0] == pytest.approx(sum(r["best"]["test"]["sine"] for r in records) / 2)
    assert second.seeds == [0]
    assert second.unfinished == ["seed 1: 0/3"]
    made = table(toys, [first, second])
    assert made.row_count == 3 + 5
    many = table(toys, [first, second] * 3)
    assert many.row_count == 6 + 3  # a line for each unfinished run
    assert [column.header for column in many.columns][1:3] == ["Δm %", "last epoch"]
    text = markdown(toys, [first, second])
    assert text.splitlines()[2].startswith("| LS |")
    assert "± " in text
    assert spread([]) == "–"
    assert spread([1.0, 3.0]) == "2.0 ± 1.4"


def test_figures_of_scores_and_records(tmp_path: Path) -> None:
    toys = comparison()
    jobs = toys.jobs(seeds=[0], epochs=3)
    for job in jobs:
        Trainer(job.run, tmp_path / job.folder, record=2).train()
    (tmp_path / jobs[1].folder / RESULTS).unlink()  # an unfinished run is drawn as far as it goes
    figure = curves(toys, jobs, tmp_path)
    scores = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]
    history = json.loads((tmp_path / jobs[0].folder / RESULTS).read_text())["history"]
    assert [line.get_label() for line in scores] == ["LS (1 seed)", "BayesAgg (1 seed)"]
    assert list(scores[0].get_ydata()) == [epoch["score"] for epoch in history]  # type: ignore[arg-type]
    found = draw(toys, jobs, tmp_path, tmp_path / "figure")
    assert [path.name for path in found] == ["figure.png", "figure-record.png"]
    seen = {axes.get_title(): len(axes.lines) for axes in recorded(toys, jobs, tmp_path).axes}
    assert seen["norm of the features"] == 2
    assert seen["effective number of tasks"] == 1  # LS has none


def test_the_catalogue_can_be_run() -> None:
    for name, found in package.COMPARISONS.items():
        jobs = found.jobs()
        assert len({(job.label, job.seed) for job in jobs}) == len(jobs), name
        assert found.about
    paper = package.find("qm9-paper").jobs(["paper-0.85"], [0])[0].run
    assert (paper.settings.epochs, paper.settings.schedule) == (300, "plateau")
    assert paper.options == BayesAggOptions(pretrain=50, power=0.85, prior_variance=1e-3)
    assert {e.label for e in package.find("qm9-small").entries} >= {"ls", "si", "paper"}
    with pytest.raises(SettingsError, match="comparison = 'qm9' is unknown"):
        package.find("qm9")


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
    assert "give one of qm9-small" in wrong.stderr


def test_every_run_is_told_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(name: str, job: Job, out: Path, minutes: float | None) -> list[str]:
        return [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)"]

    monkeypatch.setattr(work, "command", fake)
    given = ["qm9-small", "--only", "ls", "--seed", "0", "--epochs", "3", "--lr", "0.01"]
    found = CliRunner().invoke(app, ["compare", *given, "--out", str(tmp_path)])
    assert found.exit_code == work.STOPPED
    told = (tmp_path / "ls" / "seed0" / "log.txt").read_text(encoding="utf-8")
    for pair in ("'--epochs', '3'", "'--lr', '0.01'"):
        assert pair in told


def test_finished_runs_with_other_settings_are_in_the_way(tmp_path: Path) -> None:
    """Neither counted as the plan's, nor shown under its caption."""
    toys = comparison()
    short = toys.jobs(["ls"], [0], epochs=2)
    Trainer(short[0].run, tmp_path / short[0].folder).train()
    planned = toys.jobs(["ls"], [0])
    given: dict[str, Any] = {"at_once": 1, "minutes": None, "options": [], "say": print}
    with pytest.raises(SettingsError, match=r"settings\.epochs: 2 there, 4 here.*another --out"):
        work.work("toys", planned, tmp_path, **given)
    assert work.work("toys", short, tmp_path, **given) == (0, 0)
    (row,) = rows(toys, planned, tmp_path)
    assert row.seeds == []
    assert row.unfinished == ["seed 0: other settings (settings.epochs: 2 there, 4 here)"]


def test_an_option_of_a_later_version_counts_as_its_default(tmp_path: Path) -> None:
    """What an earlier version finished or began goes on; what it could not do is another run."""
    toys = comparison()
    (job,) = toys.jobs(["ba"], [0])
    Trainer(job.run, tmp_path / job.folder).train()
    for name, change in {RESULTS: _results_without, CHECKPOINT: _checkpoint_without}.items():
        change(tmp_path / job.folder / name, "noise")
    given: dict[str, Any] = {"at_once": 1, "minutes": None, "options": [], "say": print}
    assert work.work("toys", [job], tmp_path, **given) == (0, 0)
    Trainer(job.run, tmp_path / job.folder, resume=True)
    options = replace(job.run.options, noise="learned")
    other = replace(job, run=replace(job.run, options=options))
    with pytest.raises(SettingsError, match=r"options\.noise: 'unit' there, 'learned' here"):
        work.work("toys", [other], tmp_path, **given)
    with pytest.raises(CheckpointError, match=r"options\.noise: 'unit' there, 'learned' here"):
        Trainer(other.run, tmp_path / job.folder, resume=True)


def _results_without(path: Path, option: str) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    del found["method"]["options"][option]
    path.write_text(json.dumps(found), encoding="utf-8")


def _checkpoint_without(path: Path, option: str) -> None:
    state = torch.load(path, weights_only=True)
    del state["identity"]["method"]["options"][option]
    torch.save(state, path)


def test_failures_and_runs_that_are_left_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"ls": 2, "ba": 4}

    def fake(name: str, job: Job, out: Path, minutes: float | None) -> list[str]:
        text = f"import sys; print('error: no luck'); sys.exit({codes[job.label]})"
        return [sys.executable, "-c", text]

    monkeypatch.setattr(work, "command", fake)
    said: list[str] = []
    jobs = comparison().jobs(seeds=[0])
    found = work.work("toys", jobs, tmp_path, at_once=1, minutes=None, options=[], say=said.append)
    assert found == (1, 1)
    assert any("(error: no luck)" in line for line in said)
    assert any("another process is at work" in line for line in said)


def test_one_process_in_one_folder(tmp_path: Path) -> None:
    from experiments.compare.__main__ import main
    from experiments.runner.store import Place

    with Place(tmp_path / "ls" / "seed0").locked() as mine:
        assert mine
        arguments = ["qm9-small", "ls", "0", "--out", str(tmp_path), "--epochs", "2"]
        assert main(arguments) == work.BUSY


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
