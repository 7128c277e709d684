"""`--record`: the trainer's recorder through interruption and resumption."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesagg_pyro import diagnostics
from experiments.errors import RunInterrupted, SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import CHECKPOINT, RECORD, Trainer
from experiments.training.reporting import Reporter
from tests.experiments.toy import Toy, without_times

OPTIONS = {"ls": MethodOptions(), "bayesagg": BayesAggOptions(pretrain=1, prior_variance=1.0)}


def make(method: str, epochs: int = 3) -> Run:
    return Run(Toy(), method, OPTIONS[method], Settings(epochs=epochs, batch_size=32, device="cpu"))


class StopAt(Reporter):
    """Ctrl-C at the so many-th step."""

    def __init__(self, step: int) -> None:
        self.left = step

    def step(self, loss: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_a_recorded_run_is_the_same_run(tmp_path: Path, method: str) -> None:
    plain = Trainer(make(method), tmp_path / "a").train()
    recorded = Trainer(make(method), tmp_path / "b", record=2).train()
    assert without_times(plain["history"]) == without_times(recorded["history"])
    assert not (tmp_path / "a" / RECORD).exists()
    rows = diagnostics.read(tmp_path / "b" / RECORD)
    assert [row["step"] for row in rows] == [0, 2, 4, 6, 8]  # 96 rows in batches of 32
    assert [row["epoch"] for row in rows] == [1, 1, 2, 3, 3]
    assert ("stale_cost/alone" in rows[-1]) == (method == "bayesagg")


def test_an_interrupted_and_resumed_run_records_as_if_never_stopped(tmp_path: Path) -> None:
    Trainer(make("bayesagg"), tmp_path / "whole", record=1).train()
    with pytest.raises(RunInterrupted):
        Trainer(make("bayesagg"), tmp_path / "cut", record=1, reporter=StopAt(5)).train()
    assert len(diagnostics.read(tmp_path / "cut" / RECORD)) == 5
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    Trainer(make("bayesagg"), tmp_path / "cut", record=1, resume=True).train()
    whole, cut = (diagnostics.read(tmp_path / name / RECORD) for name in ("whole", "cut"))
    assert whole == cut


def test_starting_anew_drops_the_record(tmp_path: Path) -> None:
    Trainer(make("ls"), tmp_path, record=1).train()
    Trainer(make("ls"), tmp_path, overwrite=True).train()
    assert not (tmp_path / RECORD).exists()


def test_a_number_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="record = 0 cannot work"):
        Trainer(make("ls"), tmp_path / "x", record=0)
    assert not (tmp_path / "x").exists()
