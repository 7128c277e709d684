"""Loggers hear every epoch once, also of a run in pieces; the packages are stand-ins."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments.errors import SettingsError
from experiments.methods import MethodOptions
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer
from experiments.training.reporting import LOGGERS
from tests.experiments.toy import Toy


def run(epochs: int) -> Run:
    return Run(Toy(), "ls", MethodOptions(), Settings(epochs=epochs, batch_size=32, device="cpu"))


@pytest.mark.parametrize("left", ["all", "epoch,phase\n1,training\n", "\x00", None])
def test_a_table_of_epochs_goes_on(left: str | None, tmp_path: Path) -> None:
    """Whatever is left of it: a process may be killed after its checkpoint and before this file."""
    Trainer(run(2), tmp_path, log=["csv"]).train()
    if left is None:
        (tmp_path / "epochs.csv").unlink()
    elif left != "all":
        (tmp_path / "epochs.csv").write_text(left)
    record = Trainer(run(3), tmp_path, resume=True, log=["csv"]).train()
    with (tmp_path / "epochs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    for row, epoch in zip(rows, record["history"], strict=True):
        assert float(row["score"]) == epoch["score"]
        assert float(row["validation/sine"]) == epoch["validation"]["sine"]


class Package(ModuleType):
    """Keeps what it is told: the few functions of wandb and mlflow that are called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: self.told.append((name, given or named))


@pytest.mark.parametrize(
    ("name", "begin", "log", "end"),
    [("wandb", "init", "log", "finish"), ("mlflow", "start_run", "log_metrics", "end_run")],
)
def test_services_hear_every_epoch(
    name: str, begin: str, log: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package(name)
    monkeypatch.setitem(sys.modules, name, package)
    record = Trainer(run(2), tmp_path, log=[name]).train()
    said = [what for what, _ in package.told]
    assert (said[0], said[-1], said.count(log)) == (begin, end, 2)
    scores = [given[0]["score"] for what, given in package.told if what == log]
    assert scores == [epoch["score"] for epoch in record["history"]]
    package.told.clear()
    Trainer(run(3), tmp_path, resume=True, log=[name]).train()
    assert [what for what, _ in package.told].count(log) == 3  # whole, whichever piece is looked at


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=f"pip install {name}"):
        Trainer(run(1), tmp_path / "run", log=["csv", name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"give some of {', '.join(LOGGERS)}"):
        Trainer(run(1), tmp_path, log=["comet"])
