"""The loggers with the packages themselves; not collected with the suite, which has stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def train(log: str, folder: Path, **env: str) -> None:
    command = [sys.executable, "-m", "experiments", "digits", "--method", "ls", "--epochs", "2"]
    command += ["--log", log, "--out", str(folder / "run")]
    subprocess.run(command, check=True, env={**os.environ, **env}, timeout=300)


def test_tensorboard(tmp_path: Path) -> None:
    train("tensorboard", tmp_path)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("score")] == [1, 2]


def test_weights_and_biases(tmp_path: Path) -> None:
    train("wandb", tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert list((tmp_path / "run").rglob("*.wandb"))


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow's SQL
def test_mlflow(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/mlflow.db"
    train("mlflow", tmp_path, MLFLOW_TRACKING_URI=store)
    client = pytest.importorskip("mlflow").MlflowClient(store)
    (run,) = client.search_runs(["0"])
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "score")]
    assert steps == [1, 2]
    assert run.data.params["epochs"] == "2"
