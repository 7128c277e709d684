"""Metrics of one head each, summed up over a split, and the meter that a benchmark makes of them.

A new one is a class with the two methods of `Score`, which a benchmark names in `mixed`. A target
of NaN, or a class below 0, was not observed and counts nowhere. A value of None means that the
split cannot tell: there is no example of one of the two classes, say. A value of NaN is something
else, the sign of a network that has diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.scores.calibration import EMPTY_SPLIT, Calibration, observed


class Score(Protocol):
    """A metric of one head's tasks; made anew for each pass over a split."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch: outputs [B, tasks or classes], targets as the head takes them."""

    def compute(self) -> list[float | None]:
        """One value per task."""


class _Mean:
    """The mean over examples of something per task, in per cent or not."""

    factor = 1.0

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._counts: Tensor | None = None

    def add(self, values: Tensor, targets: Tensor) -> None:
        """Take in [B, tasks] each; nothing is copied from the device."""
        seen = observed(targets)
        total, counts = torch.where(seen, values.double(), 0.0).sum(0), seen.sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._counts = counts if self._counts is None else self._counts + counts

    def compute(self) -> list[float | None]:
        """One value per task."""
        if self._sum is None or self._counts is None:
            raise DataError(EMPTY_SPLIT)
        means = (self.factor * self._sum / self._counts).tolist()
        return [mean if n else None for mean, n in zip(means, self._counts.tolist(), strict=True)]


class MeanSquaredError(_Mean):
    """Mean squared error per task, in the units of training."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in [B, tasks] each."""
        self.add((outputs.double() - targets.double()).square(), targets)


class MeanAbsoluteError(_Mean):
    """Mean absolute error per task, in the units that the benchmark reports.

    Args:
        scale: [tasks], reported units per unit of training: the standard deviation that targets
            were divided by, times any change of unit.
    """

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self._scale: list[float] = scale.double().tolist()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in [B, tasks] each."""
        self.add((outputs.double() - targets.double()).abs(), targets)

    def compute(self) -> list[float | None]:
        """One value per task."""
        means = zip(super().compute(), self._scale, strict=True)
        return [None if mean is None else mean * scale for mean, scale in means]


class BinaryAccuracy(_Mean):
    """Per cent of the examples whose logit has the right sign, per task."""

    factor = 100.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        self.add(_kept_nan((outputs > 0) == (targets > 0.5), outputs), targets)


class ClassAccuracy(_Mean):
    """Per cent of the examples whose class has the largest logit."""

    factor = 100.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, classes] and classes [B, 1]."""
        right = outputs.argmax(-1, keepdim=True) == targets
        self.add(_kept_nan(right, outputs.sum(-1, keepdim=True)), targets)


class Largest(_Mean):
    """Per cent of the examples whose largest logit is that of a task with target 1.

    The accuracy of one-against-rest tasks, taken together as one choice among classes.
    """

    factor = 100.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        chosen = targets.gather(1, outputs.argmax(-1, keepdim=True))
        self.add(_kept_nan(chosen > 0.5, outputs.sum(-1, keepdim=True)), chosen)


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


def average_precision(scores: Tensor, positive: Tensor) -> float | None:
    """Mean over positive examples of the precision among all that score at least as high.

    Args:
        scores: [N].
        positive: [N] bool.

    Returns:
        None where there is no positive example, NaN where a score is NaN.
    """
    above = scores[positive].sort().values
    if len(above) == 0:
        return None
    if scores.isnan().any():
        return float("nan")
    right = len(above) - torch.searchsorted(above, above, right=False).double()
    chosen = len(scores) - torch.searchsorted(scores.sort().values, above, right=False).double()
    return float((right / chosen).mean())


class _OfRanking:
    """A metric per task of how all logits of the split rank the examples.

    Memory is that of the split's logits, [N, tasks].

    Attributes:
        measure: The metric of [N] scores, and [N] bool which of them are of positive examples.
    """

    measure: Callable[[Tensor, Tensor], float | None]

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits [B, tasks] and 0 or 1 [B, tasks]."""
        self._outputs.append(outputs.detach().float())
        self._targets.append(targets.float())

    def compute(self) -> list[float | None]:
        """One value per task; None where the split cannot tell."""
        if not self._outputs:
            raise DataError(EMPTY_SPLIT)
        outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
        found = []
        for k in range(outputs.shape[1]):
            seen = observed(targets[:, k])
            found.append(self.measure(outputs[seen, k], targets[seen, k] > 0.5))
        return found


class AreaUnderCurve(_OfRanking):
    """Area under the ROC curve per task, exactly; None where one of the classes does not occur.

    Ties count one half. torchmetrics' area takes logits through a sigmoid in float32, where
    confident ones tie (logits around 100: off by 0.07), and gives 0 for a class that does not
    occur.
    """

    measure = staticmethod(area_under_curve)


class AveragePrecision(_OfRanking):
    """Average precision per task; None where there is no positive example.

    torchmetrics' ties like its area (logits around 100: 0.18 for 0.44); scikit-learn's raises on
    infinite logits.
    """

    measure = staticmethod(average_precision)


class MeanOverTasks:
    """The mean of a score from 0 to 1 over the tasks that the split tells of, in per cent."""

    def __init__(self, score: Callable[[], Score]) -> None:
        self._score = score()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch."""
        self._score.update(outputs, targets)

    def compute(self) -> list[float | None]:
        """One value; None where the split tells nothing."""
        told = [value for value in self._score.compute() if value is not None]
        return [100 * sum(told) / len(told) if told else None]


class MixedMeter:
    """One score per head, and figures that belong to no single task.

    Args:
        scores: ``{head: maker of its score}`` in the order of the benchmark.
        figures: ``{name: (head, maker)}``, each score with a single value.
        calibrations: ``{head: maker}``, whose figures belong to a task each.
    """

    def __init__(
        self,
        scores: Mapping[str, Callable[[], Score]],
        figures: Mapping[str, tuple[str, Callable[[], Score]]],
        calibrations: Mapping[str, Callable[[], Calibration]],
    ) -> None:
        self._scores = {head: score() for head, score in scores.items()}
        self._figures = {name: (head, score()) for name, (head, score) in figures.items()}
        self._calibrations = {head: made() for head, made in calibrations.items()}

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
    return partial(MixedMeter, scores, figures or {}, calibrations or {})


def _kept_nan(right: Tensor, outputs: Tensor) -> Tensor:
    """1 or 0, or NaN where the outputs are: a diverged network is not merely a wrong one."""
    return torch.where(outputs.isnan(), float("nan"), right.double())
