"""Runs of the one trainer that studies are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import methods
from experiments.benchmark import Benchmark
from experiments.run import Run
from experiments.settings import Settings
from experiments.studies.kinds import HeadsRun
from experiments.training import Trainer

#: Of the digits benchmark, on one thread.
SETTINGS: Mapping[str, Any] = {
    "batch_size": 128,
    "learning_rate": 1e-2,
    "schedule": "steps",
    "head_bias": True,
    "device": "cpu",
    "threads": 1,
}


def train(
    benchmark: Benchmark,
    method: str,
    folder: Path,
    *,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    record: int | None = None,
) -> tuple[Trainer, dict[str, Any]]:
    """Train into a folder, anew.

    Returns:
        The trainer, whose method is that of the last epoch, and the results.
    """
    usual = benchmark.method_options.get(method, {})
    chosen = methods.options(method, {**usual, **(options or {})})
    kind = HeadsRun if method == "bayesagg" else Run
    run = kind(benchmark, method, chosen, Settings(**{**SETTINGS, **settings}))
    trainer = Trainer(run, folder, overwrite=True, record=record)
    return trainer, trainer.train()
