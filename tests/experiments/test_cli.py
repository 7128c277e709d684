"""The command line: what a user sees when it works and when it does not."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.cli import app
from experiments.errors import SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import CHECKPOINT, RESULTS, Trainer
from tests.experiments.conftest import TABLES
from tests.experiments.toy import Toy
from tests.forked import FORKED, program
from tests.runner.jobs import Here

SMALL_BAYES = ["--pretrain", "1", "--prior-variance", "1", "--reduction", "sum"]


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_help_lists_every_command_and_group() -> None:
    overview = run("--help")
    for command in ("demo", "qm9", "figures"):
        assert command in overview
    text = run("qm9", "--help")
    for word in ("What to train", "Data and network", "Training", "Output", "Examples", "--resume"):
        assert word in text
    for default in ("300", "0.85", "120", "0.001", "qm9pack"):
        assert default in text


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_qm9_trains_and_resumes(method: str, qm9: list[str], tmp_path: Path) -> None:
    options = [*qm9, "--method", method, "--out", str(tmp_path / "run")]
    options += SMALL_BAYES if method == "bayesagg" else []
    text = run(*options, "--epochs", "2")
    assert "epoch 1" in text  # no terminal: a line per epoch
    assert "epoch 2" in text
    assert "the mean" in text
    run(*options, "--epochs", "3", "--resume")
    record = json.loads((tmp_path / "run" / RESULTS).read_text())
    assert [epoch["epoch"] for epoch in record["history"]] == [1, 2, 3]
    assert len(record["best"]["test"]) == 11
    assert record["benchmark"]["options"]["molecules"] == 34
    assert record["data"]["sha256"]
    whole = [
        option if option != str(tmp_path / "run") else str(tmp_path / "w") for option in options
    ]
    run(*whole, "--epochs", "3")
    again = json.loads((tmp_path / "w" / RESULTS).read_text())
    assert again["last"] == record["last"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs = 0 cannot work: give at least 1"),
        (["--method", "magic"], "method = 'magic' is unknown: give one of stl, ls, si"),
        (["--method", "ls", "--power", "0.5"], "power = '0.5' has no meaning for method ls"),
        (["--power", "1.5"], "power = 1.5 cannot work: give"),
        (["--epochs", "5"], "pretrain = 50 leaves no Bayesian epoch in a run of 5"),
        (["--resolution", "atom"], "resolution = 'atom' cannot work"),
        (["--covariance", "full"], "covariance='full' is defined for power=1 only"),
        (["--reduction", "big"], "reduction = 'big' cannot work: give mean or sum"),
        (["--scale", "sum"], "there is no option --scale: it is spelt --reduction"),
        (["--lr", "-1"], "learning_rate = -1.0 cannot work: give a positive number"),
        (["--device", "abacus"], "device = 'abacus' is not a device"),
        (["--width", "0"], "width = 0 cannot work"),
        (["--network", "resnet"], "network = 'resnet' cannot work"),
        (["--threads", "0"], "threads = 0 cannot work: give at least 1"),
        (["--seed", "1"], "there is no option --seed: it is spelt --seeds"),
        (["--learning-rate=1"], "there is no option --learning-rate: it is spelt --lr"),
        (["--seeds", "0", "1"], "'1' is too much: only run and sweep take several values"),
        (["--seeds", "-1"], "seed = -1 cannot work"),
        (["--split-seed", "-1"], "split_seed = -1 cannot work: give a whole number"),
        (["--resume"], "no checkpoint at"),
        (["--molecules", "1000"], "1000"),
        (["--features", "magic"], "features = 'magic' cannot work: give pyg or chemistry"),
        (["--source", "web"], "source = 'web' cannot work: give qm9pack or pyg"),
        (["--data", "/no/such/file.npz"], "/no/such/file.npz"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, qm9: list[str], tmp_path: Path
) -> None:
    text = run(*qm9, "--out", str(tmp_path / "run"), *arguments, code=2)
    line = next(line for line in text.splitlines() if line.startswith("error: "))
    assert message in line
    assert "Traceback" not in text
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_debug_lets_the_error_through(qm9: list[str]) -> None:
    result = CliRunner().invoke(app, [*qm9, "--epochs", "0", "--debug"])
    assert isinstance(result.exception, SettingsError)


def test_unwritable_output(qm9: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = run(*qm9, "--method", "ls", "--out", str(tmp_path / "file" / "run"), code=2)
    assert "error: cannot write into the output folder" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_missing_gpu(qm9: list[str], tmp_path: Path) -> None:
    text = run(*qm9, "--method", "ls", "--device", "cuda", "--out", str(tmp_path), code=2)
    assert "torch sees 0 CUDA device(s) here; give cpu or auto" in text


@pytest.mark.usefixtures("plain_fonts")
def test_figures_compares_runs(tmp_path: Path) -> None:
    options = {"ls": MethodOptions(), "bayesagg": BayesAggOptions(pretrain=1, prior_variance=1.0)}
    for method, chosen in options.items():
        todo = Run(Toy(), method, chosen, Settings(epochs=2, batch_size=32, device="cpu"))
        Trainer(todo, tmp_path / method).train()
    text = run(
        "figures", str(tmp_path / "ls"), str(tmp_path / "bayesagg"), "--out", str(tmp_path / "both")
    )
    assert "BayesAgg" in text
    assert (tmp_path / "both" / "errors.pdf").stat().st_size > 1000
    text = run("figures", str(tmp_path / "nothing"), "--out", str(tmp_path / "both"), code=2)
    assert "no readable results file" in text


@pytest.mark.usefixtures("undrawn")
def test_figures_tells_runs_of_one_method_apart(tmp_path: Path) -> None:
    chosen = BayesAggOptions(pretrain=1, prior_variance=1.0)
    folders = [tmp_path / name for name in ("a", "b2")]
    for seed, folder in enumerate(folders):
        settings = Settings(epochs=2, batch_size=32, device="cpu", seed=seed)
        Trainer(Run(Toy(), "bayesagg", chosen, settings), folder).train()
    first, second = map(str, folders)
    text = run("figures", first, first, second, "--out", str(tmp_path / "both"))
    assert "(a)" in text
    assert "(b2)" in text
    assert {path.stem for path in (tmp_path / "both").glob("*.png")} == {
        *("errors", "weights_BayesAgg-a", "weights_BayesAgg-b2")
    }
    record = json.loads((folders[1] / RESULTS).read_text())
    record["tasks"] = record["tasks"][:-1]
    for stage in record["weights"]:
        stage["applied"] = stage["applied"][:-1]
        stage["by_example"] = [row[:-1] for row in stage["by_example"]]
    (folders[1] / RESULTS).write_text(json.dumps(record))
    text = run("figures", first, second, "--out", str(tmp_path / "both"), code=2)
    assert f"{first} and {second} have different tasks (in one alone: product)" in text
    (folders[1] / RESULTS).write_text(json.dumps({"format": 1}))
    text = run("figures", first, second, "--out", str(tmp_path / "both"), code=2)
    assert f"{second}/{RESULTS} is not the results file of a run" in text


@pytest.mark.usefixtures("undrawn")
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it, with few molecules and epochs, in this process."""
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("experiments.runner.Local", Here)
    out = tmp_path / "demo"
    small = ["--molecules", "34", "--epochs", "3", "--data", str(TABLES)]
    small += ["--validation", "3", "--test", "3"]
    (out / "ls" / "seed0").mkdir(parents=True)  # what cannot be read is set aside
    (out / "ls" / "seed0" / CHECKPOINT).write_bytes(b"old")
    text = run("demo", "--out", str(out), *small)
    for word in ("LS", "BayesAgg", "the mean", "Δm", "ms per step"):
        assert word in text
    assert {run["method"]["name"] for run in json.loads((out / RESULTS).read_text())["runs"]} == {
        *("ls", "uw", "imtl-g", "aligned-mtl-ub", "bayesagg")
    }
    assert len(list((out / "figures").glob("*.png"))) == 2
    assert "34 training examples" in (out / "report" / "report.md").read_text()
    assert (out / "report" / "figures" / "flow.png").exists()
    text = run("demo", "--out", str(out), *small, "--lr", "0.1", code=2)
    assert "holds a finished run with other settings (settings.learning_rate: 0.003 there" in text


def test_interrupted_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.qm9.benchmark.Qm9.load", press)
    text = run("demo", "--out", str(tmp_path / "demo"), code=130)
    assert "the same command goes on" in text
    assert "--resume" not in text


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_in_a_real_process(qm9: list[str], tmp_path: Path) -> None:
    out, told = tmp_path / "run", tmp_path / "errors"
    arguments = [*qm9, "--method", "ls", "--out", str(out), "--epochs", "100000"]
    given = arguments, os.environ["BAYESAGG_DATA"], told
    process = FORKED.Process(target=program, args=given)
    process.start()
    deadline = time.monotonic() + 60
    while not (out / CHECKPOINT).exists():
        assert time.monotonic() < deadline, "no checkpoint after a minute"
        assert process.is_alive(), told.read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    errors = told.read_text()
    assert process.exitcode == 130
    assert "interrupted" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    done = len(torch.load(out / CHECKPOINT, weights_only=True)["history"])
    text = run(*qm9, "--method", "ls", "--out", str(out), "--epochs", str(done + 1), "--resume")
    assert f"going on after epoch {done}" in text
