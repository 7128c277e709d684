"""Mean absolute errors of all heads in reported units; metrics of one head are in `scores.py`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from experiments.errors import DataError

__all__ = ["MeanAbsoluteError"]


class MeanAbsoluteError:
    """Mean absolute error per task, in the units that the benchmark reports.

    Args:
        scales: ``{head: [tasks]}``, reported units per unit of training (the standard deviation
            that targets were divided by, times any change of unit).
    """

    def __init__(self, scales: Mapping[str, Tensor]) -> None:
        self._scales = {name: scale.detach().double().cpu() for name, scale in scales.items()}
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def update(self, predictions: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """Take in a batch; nothing is copied from the device."""
        for name in self._scales:
            error = (predictions[name].double() - targets[name].double()).abs().sum(0)
            self._sums[name] = self._sums[name] + error if name in self._sums else error
        self._count += len(next(iter(targets.values())))

    def compute(self) -> list[float]:
        """The errors, heads in the order of ``scales``."""
        if self._count == 0:
            raise DataError("no metric of an empty split: give more data")
        means = [
            self._sums[name].cpu() / self._count * scale for name, scale in self._scales.items()
        ]
        values: list[float] = torch.cat(means).tolist()
        return values

    def figures(self) -> dict[str, float | None]:
        """None."""
        return {}
