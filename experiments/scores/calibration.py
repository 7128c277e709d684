"""How far a classifier's probabilities can be trusted, summed up in memory of a few bins a task.

All three take the point prediction as a distribution over classes; a binary task has two. Targets
of NaN, and classes below 0, were not observed, and count nowhere.

* ECE, expected calibration error (Naeini et al., 2015): confidences, the largest probability of
  each example, are put into 15 bins of equal width; Σ_b n_b / N · |accuracy_b − confidence_b|.
  (torchmetrics' keeps every confidence, and takes P(y = 1) for that of a binary task.)
* Brier score (Brier, 1950): Σ_c (p_c − 1[c = y])², mean over examples, from 0 to 2. For a binary
  task it is twice (p − y)².
* NLL: −log p_y, mean over examples, in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.errors import DataError

EMPTY_SPLIT: Final = "no metric of an empty split: give more data"
BINS: Final = 15
NAMES: Final = ("ECE", "Brier", "NLL")
_CALIBRATION: Final = (*NAMES, "coverage")


def name_of(figure: str, task: str | None = None) -> str:
    """``"ECE gender"``, or ``"ECE"`` for the mean over tasks."""
    return figure if task is None else f"{figure} {task}"


def tells_calibration(name: str) -> bool:
    """Whether a figure of that name is one of these."""
    return name.partition(" ")[0] in _CALIBRATION


def observed(targets: Tensor) -> Tensor:
    """Which targets are numbers, or classes from 0 on."""
    return ~targets.isnan() if targets.is_floating_point() else targets >= 0


class Calibration:
    """ECE, Brier score and NLL of the tasks of one head.

    Args:
        tasks: Their names, in the order of the head; one for a head with classes.
        kind: ``"binary"``: outputs are logits [B, tasks] and targets 0 or 1; ``"classes"``: outputs
            are logits [B, classes] and targets classes [B, 1].
        mean: Give the means over tasks instead of each task's own.
    """

    def __init__(
        self, tasks: Sequence[str], kind: Literal["binary", "classes"], *, mean: bool = False
    ) -> None:
        self._tasks, self._kind, self._mean = tuple(tasks), kind, mean
        self._gaps: Tensor | None = None
        self._sums: Tensor | None = None
        self._counts: Tensor | None = None

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch; nothing is copied from the device."""
        measure = _binary if self._kind == "binary" else _classes
        seen = observed(targets)
        known = torch.where(seen, targets, 0)
        confidence, right, brier, nll = (
            torch.where(seen, values, 0.0) for values in measure(outputs.double(), known)
        )
        index = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        gaps = torch.zeros(confidence.shape[1], BINS, dtype=torch.double).to(outputs.device)
        gaps.scatter_add_(1, index.mT, (right - confidence).mT)
        sums = torch.stack([brier.sum(0), nll.sum(0)])
        self._gaps = gaps if self._gaps is None else self._gaps + gaps
        self._sums = sums if self._sums is None else self._sums + sums
        counts = seen.sum(0)
        self._counts = counts if self._counts is None else self._counts + counts

    def compute(self) -> dict[str, float | None]:
        """``{"ECE task": ..., "Brier task": ..., "NLL task": ...}`` for every task.

        None for a task without a target; a mean is that of the others.

        Raises:
            DataError: The split is empty.
        """
        if self._gaps is None or self._sums is None or self._counts is None:
            raise DataError(EMPTY_SPLIT)
        there = self._counts > 0
        rows = torch.cat([self._gaps.abs().sum(1)[None], self._sums]) / self._counts
        if self._mean:
            means: list[float] = rows[:, there].mean(1).tolist()
            return {
                name_of(name): value if there.any() else None
                for name, value in zip(NAMES, means, strict=True)
            }
        return {
            name_of(name, task): value if seen else None
            for task, values, seen in zip(
                self._tasks, rows.mT.tolist(), there.tolist(), strict=True
            )
            for name, value in zip(NAMES, values, strict=True)
        }


def _binary(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    positive = targets > 0.5
    signed = torch.where(positive, logits, -logits)  # of the class that is right
    confidence = logits.abs().sigmoid()
    right = ((logits > 0) == positive).double()
    return confidence, right, 2 * torch.sigmoid(-signed).square(), -F.logsigmoid(signed)


def _classes(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    confidence, predicted = p.max(-1, keepdim=True)
    right = (predicted == targets).double()
    truth = F.one_hot(targets[:, 0], logits.shape[1])
    brier = (p - truth).square().sum(-1, keepdim=True)
    return confidence, right, brier, -log_p.gather(1, targets)
