"""The commands of the image benchmarks: what works, and what a mistake looks like."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.cifar.benchmark import Cifar
from experiments.cli import app
from experiments.errors import DataError, SettingsError
from experiments.runner import Request
from experiments.training import RESULTS
from tests.images.fixtures import class_folder, utk_folder


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_help() -> None:
    overview = run("--help")
    words = ("What to train", "Data and network", "Training", "Output", "Example", "--resume")
    for command in ("digits", "cifar-mtl", "chestxray14", "utkface", "tox21", "rand"):
        assert command in overview
        text = run(command, "--help")
        for word in ("plateau|steps|cosine", *words):
            assert word in text, command


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_digits_in_one_command(method: str, tmp_path: Path) -> None:
    size = ["--epochs", "2", "--width", "8", "--batch-size", "256", "--device", "cpu"]
    bayes = ["--pretrain", "1", "--power", "regression=0.5,binary=0.1,classes=0.1"]
    options = ["digits", "--method", method, *size, *(bayes if method == "bayesagg" else [])]
    options += ["--out", str(tmp_path), *(["--no-figures"] if method == "bayesagg" else [])]
    text = run(*options)
    assert "Δm" in text
    record = json.loads((tmp_path / RESULTS).read_text())
    assert list(record["best"]["test"]) == ["number", "odd", "loop", "digit"]
    assert (tmp_path / "figures" / "errors.png").exists() == (method == "ls")
    run(*options, "--resume", "--no-figures")


def test_the_papers_options_of_the_method_are_taken(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "set")
    size = ["--epochs", "4", "--width", "8", "--validation", "6", "--device", "cpu"]
    text = run(
        *("cifar-mtl", "--source", "folder", "--data", str(root), *size, "--no-figures"),
        *("--out", str(tmp_path / "out")),
    )
    assert "accuracy" in text
    record = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert record["method"]["options"]["power"] == 5e-4
    assert record["method"]["options"]["pretrain"] == 3
    assert record["settings"]["weight_decay"] == 1e-4
    assert [epoch["phase"] for epoch in record["history"]][2:] == ["pre-training", "Bayesian"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--task", "even"], "task = 'even'"),
        (["digits", "--only", "even"], "there is no option --only: it is spelt --task"),
        (["digits", "--split-seed", str(10**22)], f"split_seed = {10**22} cannot work"),
        (["utkface", "--split-seed", "-1"], "split_seed = -1 cannot work"),
        (["chestxray14", "--split-seed", "-1"], "split_seed = -1 cannot work"),
        (["cifar-mtl", "--split-seed", "-1"], "split_seed = -1 cannot work"),
        (["digits", "--power", "high"], "power = 'high' cannot be read"),
        (["digits", "--power", "2"], "power = 2.0 cannot work"),
        (["digits", "--power", "odd=0.1", "--epochs", "6"], "odd"),
        (["digits", "--schedule", "linear"], "schedule = 'linear'"),
        (["cifar-mtl", "--source", "folder"], "source folder needs one"),
        (["cifar-mtl", "--source", "folder", "--data", "absent"], "no folder absent"),
        (["chestxray14", "--data", "absent"], "no folder absent"),
        (["utkface", "--data", "absent"], "no folder absent"),
        (["tox21", "--data", "absent.csv"], "no file absent.csv: fetch https://"),
        (["tox21", "--split", "time"], "split = 'time'"),
        (["utkface", "--depth", "50"], "depth = 50"),
        (["cifar-mtl", "--batch-size", "1"], "batch_size = 1 cannot work: give at least 2"),
        (
            ["digits", "--method", "cagrad", "--set", "c=much"],
            "c = 'much' cannot be read: give a number",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run(*arguments, "--device", "cpu", code=2)
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_weights_file_that_is_not_there(tmp_path: Path) -> None:
    faces = utk_folder(tmp_path / "faces", count=20)
    options = ["--data", str(faces), "--weights", "absent.pth", "--method", "ls", "--device", "cpu"]
    text = run("utkface", *options, "--out", str(tmp_path / "out"), code=2)
    assert "there is no weights file absent.pth" in text


def test_powers_are_of_the_heads_that_there_are() -> None:
    """A network for one task alone takes its own of the benchmark's usual powers."""
    (run,) = Request("digits", ["bayesagg"], changes={"only": "odd"}).runs()
    assert asdict(run.options)["power"] == {"binary": 0.05}
    with pytest.raises(SettingsError, match=r"power is given for age; the heads are regression"):
        list(Request("digits", ["bayesagg"], changes={"power": "age=0.5"}).runs())


def test_a_folder_of_ones_own_needs_its_source(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="add --source folder"):
        Cifar(source="cifar10", data=str(tmp_path)).load(torch.device("cpu"))
