"""Records of runs that never were, complete enough for a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import methods, published, registry
from experiments.runner import Request, plan
from experiments.training import results


def record(
    method: str,
    seed: int,
    test: Mapping[str, float | None],
    *,
    benchmark: str = "qm9",
    validation: float = 100.0,
    changes: Mapping[str, str] | None = None,
    figures: Mapping[str, float] | None = None,
    examples: int | None = None,
) -> dict[str, Any]:
    """What a run leaves, with the given test metrics at its best epoch."""
    (job,) = plan(Request(benchmark, [method], (seed,), changes=dict(changes or {})), Path())
    bench = job.run.benchmark
    name = method.partition("@")[0]
    best = {
        "epoch": 1,
        "validation_score": validation,
        "test": dict(test),
        "test_figures": dict(figures or {}),
        "test_delta_m": bench.delta_m([test[task.name] for task in bench.tasks]),
    }
    return {
        **job.run.describe(),
        "title": methods.find(name).title,
        "metric": bench.metric,
        "single_task_source": bench.single_task_source,
        "examples": {"train": examples or bench_examples(benchmark)},
        "tasks": [dataclasses.asdict(task) for task in bench.tasks],
        "best": best,
        "last": best,
        "history": [],
        "weights": [],
    }


def bench_examples(benchmark: str) -> int:
    """As many as the paper's networks saw."""
    table = published.find(benchmark)
    return table.training_examples if table else 1000


def store(folder: Path, records: list[dict[str, Any]]) -> Path:
    for number, entry in enumerate(records):
        path = folder / f"{number}"
        path.mkdir(parents=True)
        results.save(path / "results.json", entry)
    return folder


def qm9(factor: float) -> dict[str, float]:
    """Test errors that are the published single-task ones times a factor."""
    return {task.name: factor * (task.single_task or 0.0) for task in registry.find("qm9")().tasks}
