"""Metrics of a method, or of a constant prediction, on a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.benchmark import Batch, Data, Figures, Meter, Split, Values
from experiments.methods import Method
from experiments.methods.predictive import plug_in

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
