"""Finished runs as a pandas frame, a row for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.methods import METHODS
from experiments.runner import records
from experiments.training.results import training_examples

Record = Mapping[str, Any]


def load_frame(folder: Path | str, warn: Callable[[str], object] = warnings.warn) -> pd.DataFrame:
    """All finished runs below a folder.

    Columns are ``benchmark``, ``method``, ``title``, ``seed``, ``training_examples``, ``epochs``,
    ``best_epoch``, ``validation_score``, ``test_score``, ``delta_m``, ``seconds``; each option of
    the benchmark, the method and the trainer as ``benchmark.NAME``, ``method.NAME`` and
    ``settings.NAME``; and of the test split, at the best epoch on validation, each task's metric
    as ``test.NAME`` and other figures as ``figure.NAME``. What a run has not is NaN there.

    Args:
        folder: A results store, or the output folder of anything that trains.
        warn: Is told of every results file that cannot be read, and so is left out.

    Raises:
        DataError: There is no such folder.
    """
    return pd.DataFrame([_row(record) for record in records(Path(folder), warn)])


def method_key(record: Record) -> str:
    """Name of the method, with ``@LEVEL`` where that is not its usual one."""
    name = str(record["method"]["name"])
    level = record["method"]["options"].get("level")
    usual = getattr(METHODS.get(name), "level", None)
    return name if level is None or usual is None or level == usual.key else f"{name}@{level}"


def _row(record: Record) -> dict[str, Any]:
    best = record["best"]
    return {
        "benchmark": record["benchmark"]["name"],
        "method": method_key(record),
        "title": record.get("title"),
        "seed": record["settings"]["seed"],
        "training_examples": training_examples(record),
        "epochs": record["settings"]["epochs"],
        "best_epoch": best.get("epoch"),
        "validation_score": best["validation_score"],
        "test_score": best.get("test_score"),
        "delta_m": best.get("test_delta_m"),
        "seconds": record.get("timing", {}).get("seconds"),
        **_named("benchmark", record["benchmark"]["options"]),
        **_named("method", record["method"]["options"]),
        **_named("settings", record["settings"]),
        **_named("test", best["test"]),
        **_named("figure", best["test_figures"]),
    }


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}
