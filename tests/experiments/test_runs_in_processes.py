"""A run in several processes is the run in one, and goes on with another number of them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from experiments.benchmark import Batch, Data
from experiments.cifar.benchmark import Cifar
from experiments.cli import app
from experiments.errors import SettingsError
from experiments.methods import METHODS, BayesAggOptions, MethodOptions, options
from experiments.methods.branches import branched
from experiments.qm9.benchmark import Qm9
from experiments.rows import Rows
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer
from experiments.training.checkpoints import CHECKPOINT, RESULTS
from tests.experiments.conftest import TABLES
from tests.experiments.toy import WIDTH, Toy
from tests.forked import FORKED, program
from tests.images.fixtures import class_folder
from tests.library import ranks

#: 31 molecules in batches of 10: the last has one, and one process none.
RUNS: dict[str, tuple[str, MethodOptions]] = {
    "qm9": ("bayesagg", BayesAggOptions(pretrain=1, prior_variance=1.0, prior="full-data")),
    "qm9 fresh": ("bayesagg", BayesAggOptions(pretrain=1, prior_variance=1.0, prior="fresh")),
    "qm9 pcgrad": ("pcgrad", options("pcgrad", {})),
    "cifar": ("bayesagg", BayesAggOptions(pretrain=1, prior_variance=1.0, prior="full-data")),
    "cifar uw": ("uw", MethodOptions()),
}
#: Options of methods whose own are too large for three epochs of a toy.
SMALL: dict[str, dict[str, Any]] = {
    "bayesagg": {"pretrain": 1},
    "igbv2": {"base_epoch": 1, "learn_after": 1, "act_after": 2, "every": 2},
    "ensemble-heads": {"members": 3},
    "ensemble-networks": {"members": 2},
}
#: Those that compute in single precision, whatever the network's.
SINGLE = ["igbv2"]
THEIRS = ["torchjd:UPGrad", "torchjd:GradDrop", "torchjd:FAMO", "torchjd:DWA"]
EVERY = [*METHODS, *(THEIRS if importlib.util.find_spec("torchjd") else [])]
EVERY += ["ls on branches", "bayesagg on pixels", "aligned-mtl-ub on pixels"]


def make(name: str, epochs: int, data: Path) -> Run:
    method, chosen = RUNS[name]
    settings = Settings(epochs=epochs, batch_size=10, device="cpu", threads=1)
    if name.startswith("cifar"):
        images = Cifar(source="folder", data=str(data), width=4, validation=6)
        return Run(images, method, chosen, settings)
    small: dict[str, Any] = {"molecules": 31, "validation": 3, "test": 3, "data": str(TABLES)}
    return Run(Qm9(**small, width=8, edge_width=8, passes=2), method, chosen, settings)


class TwoEach(Rows):
    """Two rows of targets for each example, as pixels are."""

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        for batch in super().batches(batch_size, generator):
            twice = {name: y.repeat_interleave(2, 0) for name, y in batch.targets.items()}
            yield Batch(batch.inputs, twice)


class Pixels(nn.Module):
    """Two rows of features for each example; with `branches`, others for each head."""

    def __init__(self, inner: nn.Module, branches: bool) -> None:
        super().__init__()
        self.inner = inner
        if branches:
            self.branches = nn.ModuleDict({n: nn.Linear(WIDTH, WIDTH) for n in ("pair", "alone")})

    def forward(self, x: Tensor) -> Any:
        features = self.inner(x)
        rows = torch.stack([features, features.square()], 1).flatten(0, 1)
        if not branched(self):
            return rows
        return {name: branch(rows) for name, branch in self.branches.items()}


@dataclass(frozen=True)
class PixelToy(Toy):
    branches: bool = False

    def load(self, device: torch.device) -> Data:
        data = super().load(device)
        parts = [getattr(data, name) for name in ("train", "validation", "test")]
        train, validation, test = (TwoEach(part.inputs, part.targets) for part in parts)
        return replace(data, train=train, validation=validation, test=test)

    def backbone(self) -> nn.Module:
        return Pixels(super().backbone(), self.branches)


def toy(case: str, out: Path) -> list[Any]:
    """Three epochs, with shares of 13 and 12, then 11 and 10 examples."""
    method, _, on = case.partition(" on ")
    torch.set_default_dtype(torch.float32 if method in SINGLE else torch.float64)
    settings = Settings(epochs=3, batch_size=25, device="cpu", threads=1)
    kind = PixelToy(dropout=0.0, branches=on == "branches") if on else Toy(dropout=0.0)
    run = Run(kind, method, options(method, SMALL.get(method, {})), settings)
    found = Trainer(run, out).train()["history"]
    return [[*epoch["train_loss"].values(), *epoch["validation"].values()] for epoch in found]


def toys(rank: int, folder: Path) -> dict[str, list[Any]]:
    return {name: toy(name, folder / name.replace(":", " ") / str(rank)) for name in EVERY}


def work(rank: int, epochs: int, folder: Path, resume: bool) -> list[Any]:
    torch.set_default_dtype(torch.float32)
    os.environ["BAYESAGG_DATA"] = str(folder / "cache")
    found = []
    for name in RUNS:
        out = folder / name if rank == 0 or resume else folder / f"{name} of {rank}"
        run = make(name, epochs, folder / "images")
        found.append(Trainer(run, out, resume=resume).train()["history"])
    return found


def both(rank: int, folder: Path) -> dict[str, list[Any]]:
    found = toys(rank, folder / "toys")
    work(rank, 2, folder, False)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """Three epochs: two by two processes, one by three; and the toy with every method."""
    made = tmp_path_factory.mktemp("runs")
    class_folder(made / "images")
    first, second = ranks.run(both, 2, made)
    assert first == second
    found = ranks.run(work, 3, 3, made, True)
    for name, *histories in zip(RUNS, *found, strict=True):
        kept = [[{k: e[k] for k in ("train_loss", "validation")} for e in h] for h in histories]
        assert kept[0] == kept[1] == kept[2], name
    return made, first


@pytest.fixture(scope="module")
def folder(trained: tuple[Path, dict[str, list[Any]]]) -> Path:
    return trained[0]


@pytest.mark.parametrize("case", EVERY)
def test_every_method_takes_the_steps_of_one_process(
    trained: tuple[Path, dict[str, list[Any]]], case: str, tmp_path: Path
) -> None:
    try:
        alone = toy(case, tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    for epoch, other in zip(alone, trained[1][case], strict=True):
        assert other == pytest.approx(epoch, rel=1e-3 if case in SINGLE else 1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_the_run_is_that_of_one_process(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", str(folder / "cache"))
    run = make(name, 4, folder / "images")
    alone = Trainer(run, tmp_path / "alone").train()
    resumed = Trainer(run, folder / name, resume=True).train()
    assert len(alone["history"]) == len(resumed["history"]) == 4
    for one, other in zip(alone["history"], resumed["history"], strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=2e-3)
        # A picture of six between two classes may fall on either side.
        near = 17.0 if name.startswith("cifar") else 0.0
        there = pytest.approx(one["validation"], rel=2e-3, abs=near, nan_ok=True)
        assert other["validation"] == there
        tasks = [epoch["effective_tasks"] or 0.0 for epoch in (one, other)]  # none in warm-up
        assert tasks[1] == pytest.approx(tasks[0], rel=2e-3)


def test_the_first_process_writes(folder: Path) -> None:
    for name in RUNS:
        assert {file.name for file in (folder / name).iterdir()} == {CHECKPOINT, RESULTS}
        assert not list((folder / f"{name} of 1").iterdir())


@pytest.mark.parametrize("name", ["bayesagg", "pcgrad"])
def test_branches_are_for_one_process(name: str) -> None:
    run = Run(Toy(), name, options(name, SMALL.get(name, {})), Toy.default_settings)
    method = run.build(torch.device("cpu"))
    method.backbone.branches = torch.nn.Linear(2, 2)
    with pytest.raises(SettingsError, match=f"method = {name!r} cannot work: .* leave --nproc"):
        method.distribute()


def test_ctrl_c_ends_all_processes_and_the_run_goes_on_in_one(
    qm9: list[str], tmp_path: Path
) -> None:
    out, told = tmp_path / "out", tmp_path / "errors"
    command = [*qm9, "--method", "ls", "--out", str(out)]
    given = [*command, "--epochs", "5000", "--nproc", "2"], os.environ["BAYESAGG_DATA"], told
    launched = FORKED.Process(target=program, args=given)
    launched.start()
    deadline = time.monotonic() + 120
    while not (out / CHECKPOINT).exists() and time.monotonic() < deadline:
        assert launched.is_alive(), told.read_text()
        time.sleep(0.1)
    os.kill(launched.pid, signal.SIGINT)
    launched.join(60)
    said = told.read_text()
    assert launched.exitcode == 130, said
    assert said.count("interrupted; ") == 1, said
    epochs = int(said.split("interrupted; ")[1].split()[0])
    result = CliRunner().invoke(app, [*command, "--epochs", str(epochs + 1), "--resume"])
    assert result.exit_code == 0, result.output
    history = json.loads((out / RESULTS).read_text())["history"]
    assert [record["epoch"] for record in history] == list(range(1, epochs + 2))


def test_nproc_is_checked(qm9: list[str]) -> None:
    result = CliRunner().invoke(app, [*qm9, "--nproc", "0"])
    assert result.exit_code == 2
    assert "nproc = 0 cannot work: give the number of processes" in result.output
