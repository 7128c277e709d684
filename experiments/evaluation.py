"""Metrics of a method, or of a constant prediction, on a split."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.benchmark import Data, Split
from experiments.methods import Method

__all__ = ["evaluate", "evaluate_constant"]


@torch.no_grad()
def evaluate(method: Method, data: Data, split: Split, batch_size: int) -> list[float]:
    """The metric per task; the method is in training mode afterwards."""
    meter = data.meter()
    method.train(False)
    try:
        for batch in split.batches(batch_size):
            meter.update(method.predict(batch.inputs), batch.targets)
    finally:
        method.train(True)
    return meter.compute()


@torch.no_grad()
def evaluate_constant(data: Data, split: Split, batch_size: int) -> list[float]:
    """The metric per task of predicting ``data.constants`` for every example."""
    meter = data.meter()
    for batch in split.batches(batch_size):
        meter.update(
            {name: _like(data.constants[name], target) for name, target in batch.targets.items()},
            batch.targets,
        )
    return meter.compute()


def _like(constant: Tensor, target: Tensor) -> Tensor:
    return constant.to(target.device, target.dtype).expand_as(target)
