"""Metrics of pixels, summed up over a split: none is a mean of means over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from experiments.benchmark import Task
from experiments.errors import DataError
from experiments.scores.calibration import EMPTY_SPLIT

_BINS: Final = 18_000
"""Of angles: a median is read to a hundredth of a degree."""
_WITHIN: Final = (11.25, 22.5, 30.0)

Measured = dict[str, float | None]


def measures(
    heads: Sequence[str], unit: str, single_task: Sequence[float] | None = None
) -> list[Task]:
    """The metrics of the heads ``"segmentation"``, ``"depth"`` and ``"normal"``, as tasks.

    Args:
        heads: Which of them there are.
        unit: Of the depth.
        single_task: Metrics of networks trained for one task alone, of all three heads in order;
            fewer leave the last ones out.
    """
    every = {
        "segmentation": [
            Task("miou", "mIoU", "%", None, higher_is_better=True),
            Task("pixel_accuracy", "pixel acc.", "%", None, higher_is_better=True),
        ],
        "depth": [
            Task("depth_absolute", "depth abs.", unit, None),
            Task("depth_relative", "depth rel.", "", None),
        ],
        "normal": [
            Task("normal_mean", "angle mean", "°", None),
            Task("normal_median", "angle median", "°", None),
            *(
                Task(f"normal_{int(limit)}", f"< {limit:g}°", "%", None, higher_is_better=True)
                for limit in _WITHIN
            ),
        ],
    }
    known = [task.name for tasks in every.values() for task in tasks]
    single = dict(zip(known, single_task or (), strict=False))
    return [
        replace(task, single_task=single.get(task.name)) for head in heads for task in every[head]
    ]


class DenseMeter:
    """mIoU and accuracy in per cent, depth errors, and angles between normals in degrees.

    Args:
        heads: Which of ``"segmentation"``, ``"depth"`` and ``"normal"`` there are, in order.
        classes: Their names.
        depth_mean: Mean of the logarithm of the depth that targets were standardised with.
        depth_std: Its standard deviation.
    """

    def __init__(
        self, heads: Sequence[str], classes: Sequence[str], depth_mean: float, depth_std: float
    ) -> None:
        self._heads, self._names, self._classes = tuple(heads), tuple(classes), len(classes)
        self._depth = depth_mean, depth_std
        self._sums: dict[str, Tensor] = {}

    def update(self, predictions: Mapping[str, Tensor], targets: Mapping[str, Any]) -> None:
        """Take in a batch; nothing is copied from the device.

        Args:
            predictions: Logits [N, classes], standardised logarithms of depth [N, 1], and normals
                of any length [N, 3], as far as there are such heads; or [N, columns, 2] of a mean
                and something about its noise.
            targets: (values, mask), each [N, columns].
        """
        takes = {"segmentation": self._segmentation, "depth": self._depths, "normal": self._normals}
        for head in self._heads:
            values, mask = targets[head]
            outputs = predictions[head]
            # The first of several outputs of a task is its mean.
            outputs = outputs if outputs.ndim == 2 else outputs[..., 0]
            takes[head](outputs, values, mask[:, 0])

    def compute(self) -> list[float | None]:
        """The metrics in the order of :func:`measures`; None where nothing was observed."""
        if not self._sums:
            raise DataError(EMPTY_SPLIT)
        sums = {name: value.cpu() for name, value in self._sums.items()}
        reads = {"segmentation": self._classified, "depth": _depth_errors, "normal": _angle_errors}
        return [value for head in self._heads for value in reads[head](sums)]

    def figures(self) -> dict[str, float | None]:
        """The intersection over union of every class, in per cent."""
        if "segmentation" not in self._heads:
            return {}
        ious = self._ious(self._sums["confusion"].cpu())
        pairs = zip(self._names, ious.tolist(), strict=True)
        return {f"IoU {name}": None if v != v else v for name, v in pairs}

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _segmentation(self, logits: Tensor, label: Tensor, seen: Tensor) -> None:
        square = self._classes**2
        place = label[:, 0] * self._classes + logits.argmax(-1)
        place = torch.where(seen, place, square)
        counts = torch.zeros(square + 1, dtype=torch.int64, device=logits.device)
        self._add("confusion", counts.scatter_add_(0, place, torch.ones_like(place))[:square])
        self._add("not_a_number", logits.isnan().any().double())

    def _depths(self, output: Tensor, target: Tensor, seen: Tensor) -> None:
        mean, std = self._depth
        predicted, true = (
            (mean + std * values[:, 0].double()).exp() for values in (output, target)
        )
        error = (predicted - true).abs()
        parts = torch.stack([error, error / true, torch.ones_like(error)])
        self._add("depth", torch.where(seen, parts, 0.0).sum(1))

    def _normals(self, output: Tensor, target: Tensor, seen: Tensor) -> None:
        angle = angles(output.double(), target.double())
        within = torch.stack([angle < limit for limit in _WITHIN]).double()
        parts = torch.cat([angle[None], torch.ones_like(angle)[None], within])
        self._add("angles", torch.where(seen, parts, 0.0).sum(1))
        place = (angle.nan_to_num(180.0) * (_BINS / 180)).long().clamp(max=_BINS - 1)
        counts = torch.zeros(_BINS, dtype=torch.int64, device=angle.device)
        self._add("histogram", counts.scatter_add_(0, place, seen.long()))

    def _ious(self, confusion: Tensor) -> Tensor:
        """[classes], NaN for a class that neither occurs nor is predicted."""
        table = confusion.double().view(self._classes, self._classes)
        both = table.diagonal()
        return 100 * both / (table.sum(0) + table.sum(1) - both)

    def _classified(self, sums: Mapping[str, Tensor]) -> list[float | None]:
        confusion = sums["confusion"]
        total = int(confusion.sum())
        if total == 0:
            return [None, None]
        if sums["not_a_number"] > 0:
            return [float("nan")] * 2
        right = confusion.view(self._classes, -1).diagonal().sum()
        return [float(self._ious(confusion).nanmean()), 100 * int(right) / total]


def angles(one: Tensor, other: Tensor) -> Tensor:
    """Angles in degrees between vectors [N, 3] of any length; a right one where one has none."""
    across = torch.linalg.cross(one, other).norm(dim=-1)
    along = (one * other).sum(-1)
    nothing = (across == 0) & (along == 0)
    return torch.where(nothing, 90.0, torch.rad2deg(torch.atan2(across, along)))


def _depth_errors(sums: Mapping[str, Tensor]) -> list[float | None]:
    absolute, relative, count = sums["depth"].tolist()
    return [absolute / count, relative / count] if count else [None, None]


def _angle_errors(sums: Mapping[str, Tensor]) -> list[float | None]:
    total, count, *within = sums["angles"].tolist()
    if not count:
        return [None] * (2 + len(_WITHIN))
    mean = total / count
    median = _median(sums["histogram"]) if mean == mean else mean
    return [mean, median, *(100 * inside / count for inside in within)]


def _median(histogram: Tensor) -> float:
    """The angle with half of the counts below it, within a bin in proportion."""
    below = histogram.cumsum(0)
    half = float(below[-1]) / 2
    place = int(torch.searchsorted(below.double(), half))
    before = float(below[place - 1]) if place else 0.0
    return (place + (half - before) / float(histogram[place])) * 180 / _BINS
