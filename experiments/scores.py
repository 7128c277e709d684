"""Metrics of classification and of mixed tasks, summed up over a split.

Every score belongs to one head. A value of None means that the split cannot tell: there is no
example of one of the two classes, say. NaN is something else, the sign of a network that has
diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from experiments.classifier_calibration import Calibration
from experiments.errors import DataError

__all__ = [
    "AreaUnderCurve",
    "BinaryAccuracy",
    "ClassAccuracy",
    "Largest",
    "MeanSquaredError",
    "MixedMeter",
    "Score",
    "area_under_curve",
    "mixed",
]


class Score(Protocol):
    """A metric of one head's tasks."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch: outputs [B, tasks or classes], targets as the head takes them."""

    def compute(self) -> list[float | None]:
        """One value per task."""


class _Mean:
    """The mean over examples of something per task, in per cent or not."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, values: Tensor) -> None:
        """Take in [B, tasks]; nothing is copied from the device."""
        total = values.double().sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._count += len(values)

    def compute(self) -> list[float | None]:
        """One value per task."""
        if self._sum is None or self._count == 0:
            raise DataError("no metric of an empty split: give more data")
        return list((self._factor * self._sum / self._count).tolist())


class MeanSquaredError(_Mean):
    """Mean squared error per task, in the units of training (times a factor)."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in [B, tasks] each."""
        self.add((outputs.double() - targets.double()).square())


class BinaryAccuracy(_Mean):
    """Per cent of the examples whose logit has the right sign, per task."""

    def __init__(self) -> None:
        super().__init__(100.0)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        self.add(_kept_nan((outputs > 0) == (targets > 0.5), outputs))


class ClassAccuracy(_Mean):
    """Per cent of the examples whose class has the largest logit."""

    def __init__(self) -> None:
        super().__init__(100.0)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, classes] and classes [B, 1]."""
        right = outputs.argmax(-1, keepdim=True) == targets
        self.add(_kept_nan(right, outputs.sum(-1, keepdim=True)))


class Largest(_Mean):
    """Per cent of the examples whose largest logit is that of a task with target 1.

    The accuracy of one-against-rest tasks, taken together as one choice among classes.
    """

    def __init__(self) -> None:
        super().__init__(100.0)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        right = targets.gather(1, outputs.argmax(-1, keepdim=True)) > 0.5
        self.add(_kept_nan(right, outputs.sum(-1, keepdim=True)))


class AreaUnderCurve:
    """Area under the ROC curve per task, exactly, from all logits of the split.

    Memory is that of the split's logits, [N, tasks]; ties count one half. torchmetrics' area takes
    logits through a sigmoid in float32, where confident ones tie (logits around 100: off by 0.07),
    and gives 0 for a class that does not occur.
    """

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        self._outputs.append(outputs.detach().float())
        self._targets.append(targets > 0.5)

    def compute(self) -> list[float | None]:
        """One value per task; None where one of the two classes does not occur."""
        if not self._outputs:
            raise DataError("no metric of an empty split: give more data")
        outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
        return [area_under_curve(outputs[:, k], targets[:, k]) for k in range(outputs.shape[1])]


def area_under_curve(scores: Tensor, positive: Tensor) -> float | None:
    """Probability that a positive example scores above a negative one, ties counting one half.

    Args:
        scores: [N].
        positive: [N] bool.

    Returns:
        None where one of the classes does not occur, NaN where a score is NaN.
    """
    above, below = scores[positive], scores[~positive].sort().values
    if len(above) == 0 or len(below) == 0:
        return None
    if scores.isnan().any():
        return float("nan")
    low = torch.searchsorted(below, above, right=False).double()
    high = torch.searchsorted(below, above, right=True).double()
    return float((low + high).mean() / (2 * len(below)))


class MixedMeter:
    """One score per head, and figures that belong to no single task.

    Args:
        scores: ``{head: score}`` in the order of the benchmark.
        figures: ``{name: (head, score)}``, each score with a single value.
        calibrations: ``{head: calibration}``, whose figures belong to a task each.
    """

    def __init__(
        self,
        scores: Mapping[str, Score],
        figures: Mapping[str, tuple[str, Score]] | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._scores, self._figures = dict(scores), dict(figures or {})
        self._calibrations = dict(calibrations or {})

    def update(self, predictions: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """Take in a batch."""
        for head, score in [*self._scores.items(), *self._figures.values()]:
            score.update(predictions[head], targets[head])
        for head, calibration in self._calibrations.items():
            calibration.update(predictions[head], targets[head])

    def compute(self) -> list[float | None]:
        """The metric of every task, heads in the order of ``scores``."""
        return [value for score in self._scores.values() for value in score.compute()]

    def figures(self) -> dict[str, float | None]:
        """The figures that are no task's metric."""
        found = {name: score.compute()[0] for name, (_, score) in self._figures.items()}
        for calibration in self._calibrations.values():
            found.update(calibration.compute())
        return found


def mixed(
    scores: Mapping[str, Callable[[], Score]],
    figures: Mapping[str, tuple[str, Callable[[], Score]]] | None = None,
    calibrations: Mapping[str, Callable[[], Calibration]] | None = None,
) -> Callable[[], MixedMeter]:
    """A maker of meters, as a benchmark's data wants it."""

    def make() -> MixedMeter:
        return MixedMeter(
            {head: score() for head, score in scores.items()},
            {name: (head, score()) for name, (head, score) in (figures or {}).items()},
            {head: calibration() for head, calibration in (calibrations or {}).items()},
        )

    return make


def _kept_nan(right: Tensor, outputs: Tensor) -> Tensor:
    """1 or 0, or NaN where the outputs are: a diverged network is not merely a wrong one."""
    return torch.where(outputs.isnan(), float("nan"), right.double())
