"""Metrics of a method, or of a constant prediction, on a split."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmark import Batch, Data, Figures, Meter, Split, Values
from experiments.methods import Method

__all__ = ["Measured", "evaluate", "evaluate_constant"]


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
        for batch in split.batches(batch_size):
            meter.update(method.predict(batch.inputs), batch.targets)
    finally:
        method.train(True)
    return _read(meter)


@torch.no_grad()
def evaluate_constant(data: Data, split: Split, batch_size: int) -> Measured:
    """The metrics of predicting ``data.constants`` for every example."""
    meter = data.meter()
    for batch in split.batches(batch_size):
        meter.update(_constant(data, batch), batch.targets)
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
