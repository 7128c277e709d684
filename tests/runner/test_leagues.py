"""Values chosen on validation, by runs that take no part in the table; who is ahead of whom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from scipy.stats import t
from typer.testing import CliRunner

from experiments import comparisons, runner
from experiments.benchmark import Data
from experiments.cli import app
from experiments.comparisons import Comparison, Entry, tuning
from experiments.comparisons.figure import curves, draw, league
from experiments.comparisons.standings import ahead, behind, standings
from experiments.comparisons.table import table
from experiments.comparisons.tuning import compared
from experiments.errors import SettingsError
from experiments.methods import BayesAggOptions
from experiments.runner import Job, Place
from experiments.scores import MeanAbsoluteError, mixed
from experiments.training import RESULTS, Trainer
from tests.experiments.toy import Toy
from tests.runner.jobs import Here

TOY = "tests.experiments.toy:Toy"
RATES = (1e-3, 1e-2)


def comparison(**changes: Any) -> Comparison:
    entries = [Entry("ls", "LS", "ls"), Entry("si", "SI", "si"), Entry("mine", "Mine", "uw")]
    made = Comparison(
        "toys", "a toy", TOY, entries, {"threads": 1, "epochs": 1}, seeds=(0, 1, 2),
        tuned={"learning_rate": RATES}, tuning_seeds=(5, 6), ours="mine",
    )  # fmt: skip
    return replace(made, **changes)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one run, to be given other numbers."""
    (job,) = compared(comparison(tuned={}), tmp_path_factory.mktemp("run"), only=["ls"], seeds=[0])
    Trainer(job.run, job.folder).train()
    return Place(job.folder).load()


Finish = Callable[..., None]


@pytest.fixture
def finish(record: dict[str, Any]) -> Finish:
    """Writes what a run would have left."""

    def write(job: Job, validation: float, test: float = 0.0, **tasks: float) -> None:
        best = {**record["best"], "validation_score": validation, "test_score": test}
        best["test"] = {**best["test"], **tasks}
        best["test_figures"] = {"ECE": test / 100, "mean AUC": 80 + test}
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / RESULTS).write_text(
            json.dumps({**record, **job.run.describe(), "best": best}), encoding="utf-8"
        )

    return write


def test_the_mean_on_validation_chooses_and_the_test_split_is_not_looked_at(
    tmp_path: Path, finish: Finish
) -> None:
    toys = comparison()
    jobs = compared(tuning.trials(toys), tmp_path)
    assert len({job.folder for job in jobs}) == len(jobs) == 3 * 2 * 2
    assert {job.run.settings.seed for job in jobs} == {5, 6}
    # By seed: LS 3, 3 against 1, 4; SI 2, 2 against 2, 2; the third 5, 5 against 1, 8.
    validation = {"ls": ((3, 3), (1, 4)), "si": ((2, 2), (2, 2)), "mine": ((5, 5), (1, 8))}
    for sign in (1.0, -1.0):
        for job in jobs:
            label = job.configuration.split("-")[0]
            rate, seed = RATES.index(job.run.settings.learning_rate), job.run.settings.seed
            finish(job, validation[label][rate][seed - 5], sign * 1e3 * rate)
        chosen = tuning.best(toys, jobs)
        assert chosen == {
            "ls": {"learning_rate": 1e-2},
            "si": {"learning_rate": 1e-3},  # the first of equals
            "mine": {"learning_rate": 1e-2},
        }
    settled = tuning.settled(toys, chosen)
    rates = [job.run.settings.learning_rate for job in compared(settled, tmp_path, seeds=[0])]
    assert rates == [1e-2, 1e-3, 1e-2]


def test_missing_and_failed_trials(tmp_path: Path, finish: Finish) -> None:
    toys = comparison()
    jobs = compared(tuning.trials(toys), tmp_path)
    for job in jobs:
        finish(job, 1.0 if "0.01" in job.configuration else 2.0)
    lost = {job.label: job for job in jobs}
    shutil.rmtree(lost["ls-0.001/seed6"].folder)  # the worse one of LS: nothing is known yet
    (lost["si-0.01/seed5"].folder / RESULTS).unlink()
    Place(lost["si-0.01/seed5"].folder).fail("it broke")
    for label in ("mine-0.01/seed5", "mine-0.001/seed5"):
        (lost[label].folder / RESULTS).unlink()
        Place(lost[label].folder).fail("it broke")
    assert tuning.best(toys, jobs) == {"si": {"learning_rate": 1e-3}}
    assert [e.label for e in tuning.settled(toys, tuning.best(toys, jobs)).entries] == ["si"]


@pytest.mark.parametrize("name", ["neighbours-rand", "neighbours-tox21"])
def test_half_of_all_is_not_the_default_rule_again(name: str, tmp_path: Path) -> None:
    """Which these benchmarks have, and which reads no powers."""
    (job,) = compared(comparisons.find(name), tmp_path, only=["half"], seeds=[10])
    assert isinstance(job.run.options, BayesAggOptions)
    assert (job.run.options.rule, job.run.options.power) == ("given", 0.5)


@pytest.mark.parametrize("name", comparisons.COMPARISONS)
def test_no_entry_has_options_that_nothing_reads(name: str, tmp_path: Path) -> None:
    found = comparisons.find(name)
    assert compared(found, tmp_path, seeds=found.seeds[:1])


def test_a_seed_of_the_table_does_not_choose() -> None:
    with pytest.raises(SettingsError, match="seeds = 6 cannot work: its runs choose: give others"):
        tuning.trials(comparison(seeds=(0, 6)))


@pytest.mark.parametrize("given", [["--epochs", "3"], ["--set", "epochs=3"]])
def test_trials_have_their_own_epochs(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = comparison(tuning_changes={"epochs": 2}, tuning_seeds=(5,), seeds=(0,))
    monkeypatch.setattr(
        comparisons, "COMPARISONS", {"toys": replace(toys, entries=toys.entries[:1])}
    )
    monkeypatch.setattr(runner, "Local", lambda parallel, threads: Here(parallel))
    command = ["compare", "toys", "--out", str(tmp_path), "--markdown", *given]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    epochs = {
        path.parent.parent.name: json.loads(path.read_text(encoding="utf-8"))["settings"]["epochs"]
        for path in tmp_path.rglob(RESULTS)
    }
    assert epochs == {"ls-0.001": 2, "ls-0.01": 2, "ls": 3}


@pytest.fixture
def finished(tmp_path: Path, finish: Finish) -> tuple[Comparison, list[Job]]:
    """A league of three with three seeds; SI lacks the last."""
    chosen = {label: {"learning_rate": 1e-2} for label in ("ls", "si", "mine")}
    toys = tuning.settled(comparison(), chosen)
    jobs = compared(toys, tmp_path)
    scores = {"ls": (4.0, 5.0, 9.0), "si": (1.0, 4.0), "mine": (2.0, 2.0, 2.0)}
    sines = {"ls": (0.1, 0.2, 0.3), "si": (0.05, 0.05), "mine": (0.3, 0.3, 0.3)}
    for job in jobs:
        label, seed = job.configuration, job.run.settings.seed
        if seed < len(scores[label]):
            finish(job, 0.0, scores[label][seed], sine=sines[label][seed], square=1.0)
    return toys, jobs


def test_standings(finished: tuple[Comparison, list[Job]]) -> None:
    toys, jobs = finished
    found = standings(toys, jobs)
    rows = {row["label"]: row for row in found["entries"]}
    assert list(rows) == ["mine", "si", "ls"]  # by the mean
    assert rows["si"]["scores"] == {"0": 1.0, "1": 4.0}
    assert rows["si"]["chosen"] == {"learning_rate": 1e-2}
    mine = rows["mine"]["scores"]
    assert ahead(mine, rows["ls"]["scores"]) == "3 of 3"
    assert ahead(mine, rows["si"]["scores"]) == "1 of 2"
    told = behind(found)
    # LS's standard error of the sine is 0.1 / √3; lower is better.
    assert told[0] == (
        "sine: 1.7 standard errors of LS behind it; 2 of 2 others are ahead, SI most (0.05)"
    )
    assert told[1] == "square: no other is ahead"
    made = table(toys, jobs)
    assert [row.label for row in made.rows] == ["Mine", "SI", "LS"]
    assert [column.title for column in made.columns][-3:] == [
        "learning rate", "ours ahead", "Δm − ours",
    ]  # fmt: skip
    assert [str(cell) for cell in made.rows[1].cells[-3:]] == ["0.01", "1 of 2", "0.5 ± 2.1"]
    assert [str(cell) for cell in made.rows[0].cells[-2:]] == ["–", "–"]
    assert "SI, seed 2: 0/1 epochs" in made.notes
    (lost,) = (job for job in jobs if job.label == "si/seed2")
    Place(lost.folder).fail("it broke")
    told = table(toys, jobs).notes
    assert "SI, seed 2: failed after 0/1 epochs (ProcessDied: it broke)" in told
    assert "ECE" not in [column.title for column in made.columns]


def test_scores_that_are_not_known(finished: tuple[Comparison, list[Job]]) -> None:
    """Such as an AUC of a test without a positive example, which results keep as none."""
    found = standings(*finished)
    rows = {row["label"]: row for row in found["entries"]}
    rows["ls"]["tasks"]["sine"]["0"] = None
    rows["mine"]["tasks"]["square"] = dict.fromkeys("012")
    sine, square, *_ = behind(found)
    # The error of what is known is 0.1 / √2 / √2.
    assert sine.startswith("sine: 1.0 standard errors of LS behind it; 2 of 2 others are ahead")
    assert square == "square: ours has no test score"


def test_figures_that_are_asked_for(finished: tuple[Comparison, list[Job]]) -> None:
    made = table(*finished, ["mean AUC", "ECE"])
    assert [column.title for column in made.columns][3:6] == ["mean AUC", "ECE", "Δm %"]
    assert [str(cell) for cell in made.rows[1].cells[3:5]] == ["82.50 ± 2.12", "0.025 ± 0.021"]
    with pytest.raises(SettingsError, match="show = 'AUC' cannot work: give one of ECE, mean AUC"):
        table(*finished, ["AUC"])


def test_the_figure_shows_these_numbers(finished: tuple[Comparison, list[Job]]) -> None:
    figure = league(standings(*finished))
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["Mine", "SI", "LS"]
    drawn = [[*map(float, line.get_xdata())] for line in left.lines]  # type: ignore[arg-type]
    assert drawn[0] == [2.0, 2.0, 2.0]
    assert drawn[3] == [1.0, 4.0]
    assert drawn[6:8] == [[4.0, 5.0, 9.0], [6.0]]
    error = 7**0.5 / 3**0.5  # the sample variance of 4, 5, 9 is 7
    half = error * float(t.ppf(0.975, 2))
    assert drawn[8] == pytest.approx([6 - half, 6 + half])
    apart = [[*map(float, line.get_xdata())] for line in right.lines]  # type: ignore[arg-type]
    assert [-1.0, 2.0] in apart
    assert [2.0, 3.0, 7.0] in apart
    assert [text.get_text() for text in right.texts[:2]] == ["1 of 2", "3 of 3"]


def test_curves_are_not_of_runs_with_other_settings(tmp_path: Path, finish: Finish) -> None:
    """Which the table leaves out, too."""
    jobs = compared(comparison(tuned={}), tmp_path, only=["ls", "si"], seeds=[0])
    other = compared(comparison(tuned={}), tmp_path, seeds=[0], changes={"beta2": 0.5})
    finish(jobs[0], 1.0)
    finish(other[1], 1.0)
    assert [job.label for job in other[:2]] == [job.label for job in jobs]
    assert (
        "SI, seed 0: other settings (settings.beta2: 0.5 there, 0.999 here)"
        in table(comparison(tuned={}, ours=None), jobs).notes
    )
    left, _ = curves(jobs).axes
    assert [line.get_label() for line in left.lines] == ["LS (1 seed)"]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_no_figure_of_no_results(seeds: tuple[int, ...], tmp_path: Path, finish: Finish) -> None:
    """Of one seed and of a league; trials alone are no results of the latter."""
    found = comparison(tuned={})
    jobs = compared(found, tmp_path, seeds=seeds)
    assert draw(found, jobs, tmp_path / "figure") == []
    assert not [*tmp_path.glob("figure*")]
    finish(jobs[0], 1.0)
    assert draw(found, jobs, tmp_path / "figure") == [tmp_path / "figure.png"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials, then the runs with what they chose; again, and nothing is left to do."""
    toys = comparison(entries=comparison().entries[::2], seeds=(0, 1), tuning_seeds=(5,))
    monkeypatch.setattr(comparisons, "COMPARISONS", {"toys": toys})
    monkeypatch.setattr(runner, "Local", lambda parallel, threads: Here(parallel))
    command = ["compare", "toys", "--out", str(tmp_path / "out")]
    misspelt = CliRunner().invoke(app, [*command, "--show", "EEC"])
    assert "show = 'EEC' cannot work" in misspelt.stderr
    assert not (tmp_path / "out").exists()
    more = ["--figure", str(tmp_path / "figure"), "--markdown"]
    planned = CliRunner().invoke(app, [*command, "--plan"])
    assert planned.exit_code == 0, planned.output
    assert "4 runs" in planned.output
    assert "LS: nothing chosen yet" in planned.output
    found = CliRunner().invoke(app, [*command, *more])
    assert found.exit_code == 0, found.output
    assert "ours ahead" in found.output
    numbers = json.loads((tmp_path / "figure.json").read_text(encoding="utf-8"))
    for row in numbers["entries"]:
        for seed, score in row["scores"].items():
            done = tmp_path / "out" / row["label"] / f"seed{seed}" / RESULTS
            ended = json.loads(done.read_text(encoding="utf-8"))
            assert ended["best"]["test_score"] == score
            assert ended["settings"]["learning_rate"] == row["chosen"]["learning_rate"]
    assert imread(tmp_path / "figure.png").size
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob(RESULTS)}
    assert len(times) == 4 + 4
    again = CliRunner().invoke(app, [*command, "--table-only", "--markdown"])
    assert again.output[again.output.index("| ") :].split("\n\n")[0] in found.output
    rate = ["--lr", "0.1", "--only", "ls", "--out", str(tmp_path / "other")]
    given = CliRunner().invoke(app, [*command, *rate, "--plan"])
    assert "2 runs" in given.output  # no trials: the rate is given
    refused = CliRunner().invoke(app, [*command, "--seeds", "5"])
    assert "its runs choose" in refused.stderr
    for_one = CliRunner().invoke(app, [*command, "--set", "ls.learning_rate=0.1"])
    assert "set = 'ls.learning_rate' cannot work" in for_one.stderr
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob(RESULTS)}


def test_the_data_is_loaded_once_to_look_for_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = comparison(entries=comparison().entries[::2], seeds=(0,), tuning_seeds=(5,))
    monkeypatch.setattr(comparisons, "COMPARISONS", {"toys": toys})
    monkeypatch.setattr(runner, "Local", lambda parallel, threads: Here(parallel))
    load, loads = Toy.load, list[torch.device]()

    def counted(self: Toy, device: torch.device) -> Data:
        loads.append(device)
        alone, pair = (partial(MeanAbsoluteError, torch.ones(tasks)) for tasks in (1, 2))
        meter = mixed({"pair": pair, "alone": alone}, {"error": ("alone", alone)})
        return replace(load(self, device), meter=meter)

    monkeypatch.setattr(Toy, "load", counted)
    command = ["compare", "toys", "--out", str(tmp_path / "out"), "--show", "error", "--markdown"]
    for trained in (2 * len(RATES) + 2, 0):
        loads.clear()
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, found.output
        assert "| error |" in found.output
        assert len(loads) == 1 + trained
