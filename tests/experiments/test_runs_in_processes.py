"""A run in several processes is the run in one, and goes on with another number of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.cifar.benchmark import Cifar
from experiments.errors import SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.output import CHECKPOINT, RESULTS
from experiments.qm9.benchmark import Qm9
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer
from tests.experiments.conftest import TABLES
from tests.images.fixtures import class_folder
from tests.library import ranks

#: 31 molecules in batches of 10: the last has one, and one process none.
RUNS = {"qm9": "full-data", "qm9 fresh": "fresh", "cifar": "full-data"}


def make(name: str, epochs: int, data: Path) -> Run:
    options = BayesAggOptions(pretrain=1, prior_variance=1.0, prior=RUNS[name])  # type: ignore[arg-type]
    settings = Settings(epochs=epochs, batch_size=10, device="cpu", threads=1)
    if name == "cifar":
        return Run(
            Cifar(source="folder", data=str(data), width=4, validation=6),
            "bayesagg",
            options,
            settings,
        )
    small: dict[str, Any] = {"molecules": 31, "validation": 3, "test": 3, "data": str(TABLES)}
    return Run(Qm9(**small, width=8, edge_width=8, passes=2), "bayesagg", options, settings)


def work(rank: int, epochs: int, folder: Path, resume: bool) -> list[Any]:
    torch.set_default_dtype(torch.float32)
    os.environ["BAYESAGG_DATA"] = str(folder / "cache")
    found = []
    for name in RUNS:
        out = folder / name if rank == 0 or resume else folder / f"{name} of {rank}"
        run = make(name, epochs, folder / "images")
        found.append(Trainer(run, out, resume=resume).train()["history"])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs: two by two processes, one by three."""
    made = tmp_path_factory.mktemp("runs")
    class_folder(made / "images")
    ranks.run(work, 2, 2, made, False)
    found = ranks.run(work, 3, 3, made, True)
    for name, *histories in zip(RUNS, *found, strict=True):
        kept = [[{k: e[k] for k in ("train_loss", "validation")} for e in h] for h in histories]
        assert kept[0] == kept[1] == kept[2], name
    return made


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
        for what in ("train_loss", "validation"):
            assert other[what] == pytest.approx(one[what], rel=2e-3, nan_ok=True)
        tasks = [epoch["effective_tasks"] or 0.0 for epoch in (one, other)]  # none in warm-up
        assert tasks[1] == pytest.approx(tasks[0], rel=2e-3)


def test_the_first_process_writes(folder: Path) -> None:
    for name in RUNS:
        assert {file.name for file in (folder / name).iterdir()} == {CHECKPOINT, RESULTS}
        assert not list((folder / f"{name} of 1").iterdir())


def test_methods_that_take_whole_batches_are_refused(folder: Path) -> None:
    run = make("qm9", 2, folder)
    method = Run(run.benchmark, "ls", MethodOptions(), run.settings).build(torch.device("cpu"))
    with pytest.raises(SettingsError, match="without torchrun"):
        method.distribute()
