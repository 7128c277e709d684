"""Metrics on a split, of a method or a constant prediction, and what a run amounts to by them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.benchmark import Batch, Benchmark, Data, Figures, Meter, Split, Values
from experiments.methods import Method
from experiments.methods.predictive import plug_in
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import results

#: Rows whose predictive distributions are made together: integrals cost a call more than a row.
_AT_ONCE = 1024


@dataclass(frozen=True)
class Measured:
    """Metrics on a split.

    Attributes:
        values: Per task, in the order of the benchmark; None where the split cannot tell.
        figures: Those that belong to no single task.
    """

    values: Values
    figures: Figures


@torch.no_grad()
def evaluate(method: Method, data: Data, split: Split, batch_size: int) -> Measured:
    """The metrics; the method is in training mode afterwards."""
    meter = data.meter()
    method.train(False)
    try:
        predict = method.predict
        if data.likelihoods is not None:
            batch_size = max(batch_size, _AT_ONCE)
            method.calibrate(iter(data.validation.batches(batch_size)))
            predict = method.predictive
        for batch in split.batches(batch_size):
            meter.update(predict(batch.inputs), batch.targets)
    finally:
        method.train(True)
    return _read(meter)


@torch.no_grad()
def evaluate_constant(data: Data, split: Split, batch_size: int) -> Measured:
    """The metrics of predicting ``data.constants`` for every example."""
    meter = data.meter()
    for batch in split.batches(batch_size):
        outputs: dict[str, Any] = _constant(data, batch)
        for name, head in (data.likelihoods or {}).items():
            outputs[name] = plug_in(head, outputs[name].cpu())
        meter.update(outputs, batch.targets)
    return _read(meter)


def _constant(data: Data, batch: Batch) -> dict[str, Tensor]:
    """``data.constants`` as the outputs for every example of ``batch``."""
    values = {name: t if isinstance(t, Tensor) else t[0] for name, t in batch.targets.items()}
    return {
        name: data.constants[name].to(target.device).expand(len(target), -1)
        for name, target in values.items()
    }


def _read(meter: Meter) -> Measured:
    return Measured(list(meter.compute()), dict(meter.figures()))


Record = dict[str, Any]

_GPU_BATCHES = 8


def describe(run: Run, method: Method, data: Data) -> Record:
    """What was trained on what, and how."""
    benchmark = run.benchmark
    contents = data.contents(benchmark.losses)
    return {
        **run.describe(),
        "title": method.title,
        "benchmark_title": benchmark.title,
        "usual": {
            **run.defaults()["benchmark"]["options"],
            "epochs": benchmark.default_settings.epochs,
            "batch_size": benchmark.default_settings.batch_size,
        },
        "tasks": [dataclasses.asdict(task) for task in benchmark.tasks],
        **_losses(benchmark),
        "metric": benchmark.metric,
        "single_task_source": benchmark.single_task_source,
        "score_name": benchmark.score_name,
        "data": {"sizes": contents["examples"], **data.about},
        **contents,
        "parameters": sum(p.numel() for p in method.parameters()),
    }


def evaluation_size(settings: Settings, device: torch.device) -> int:
    """Examples at a time without gradients: on a GPU more, since small batches leave it idle."""
    return settings.batch_size * (_GPU_BATCHES if device.type == "cuda" else 1)


def measure(run: Run, method: Method, data: Data, epoch: int) -> Record:
    """Metrics of the method as it stands after ``epoch``, on the validation and the test split."""
    size = evaluation_size(run.settings, next(method.parameters()).device)
    return {
        "epoch": epoch,
        **_scored(run, "validation", evaluate(method, data, data.validation, size)),
        **_scored(run, "test", evaluate(method, data, data.test, size)),
    }


def measure_constant(run: Run, data: Data) -> Record:
    """Metrics of the constant prediction, likewise."""
    size = run.settings.batch_size
    return {
        **_scored(run, "validation", evaluate_constant(data, data.validation, size)),
        **_scored(run, "test", evaluate_constant(data, data.test, size)),
    }


def stages(weights: Sequence[Record]) -> list[Record]:
    """Start, middle and end, as plain values."""
    last = len(weights) - 1
    chosen = [weights[index] for index in sorted({0, last // 2, last})] if weights else []
    return [
        {
            key: _plain(value.tolist()) if isinstance(value, Tensor) else value
            for key, value in stage.items()
        }
        for stage in chosen
    ]


def _losses(benchmark: Benchmark) -> Record:
    """The names of what is trained, where they are not those of the tasks."""
    names = list(benchmark.losses)
    return {} if names == [task.name for task in benchmark.tasks] else {"losses": names}


def _plain(value: Any) -> Any:
    """None for NaN, which stands for what was not observed."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if math.isnan(value) else value


def _scored(run: Run, split: str, measured: Measured) -> Record:
    benchmark = run.benchmark
    return {
        split: results.by_task(benchmark, measured.values),
        f"{split}_figures": dict(measured.figures),
        f"{split}_delta_m": benchmark.delta_m(measured.values),
        f"{split}_score": benchmark.score(measured.values, measured.figures),
    }
