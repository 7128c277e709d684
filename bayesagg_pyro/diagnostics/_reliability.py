"""Stated probabilities against frequencies, and what chance makes of calibrated ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS, Check
from bayesagg_pyro.errors import NonFiniteError, SettingError, ShapeError

#: Simulated sets of labels.
_SIMULATIONS = 999


@dataclass(frozen=True)
class Reliability:
    """Stated probabilities against observed frequencies, in bins of equal width.

    Attributes:
        stated: sum of stated probabilities in each bin, [tasks, bins].
        right: how many of these predictions came so, [tasks, bins].
        counts: predictions, [tasks, bins].
    """

    stated: Tensor
    right: Tensor
    counts: Tensor

    @property
    def confidence(self) -> Tensor:
        """Mean stated probability of each bin, [bins]; NaN where empty."""
        return self.stated.sum(0) / self.count

    @property
    def frequency(self) -> Tensor:
        """Observed frequency of what was stated, [bins]; NaN where empty."""
        return self.right.sum(0) / self.count

    @property
    def count(self) -> Tensor:
        """Predictions per bin, [bins]."""
        return self.counts.sum(0)

    @property
    def ece(self) -> Tensor:
        """Expected calibration error: mean |confidence − frequency| over predictions, []."""
        return self.by_task()[0]

    def by_task(self) -> Tensor:
        """Expected calibration error of all tasks together, and of each: [1 + tasks].

        NaN for a task without any target.
        """
        return _errors(self.right - self.stated, self.counts)

    def p_values(self) -> tuple[Tensor, Tensor]:
        """How often calibrated probabilities, for as many examples, look as bad; by simulation.

        Labels are drawn bin by bin from the mean of what was stated there, with a fixed seed. (The
        sum of labels with unequal probabilities varies a little less, so that the p-values err to
        the safe side: Hoeffding, 1956, https://doi.org/10.1214/aoms/1177728178.) The largest error,
        in standard deviations from its own mean, is compared with the largest ones of the
        simulations, so the p-values hold for all tasks at once.

        Returns:
            p-values [1 + tasks], and the errors that one in twenty simulations passes, likewise.
        """
        counts, stated = self.counts.cpu(), self.stated.cpu()
        generator = torch.Generator().manual_seed(0)
        many = counts.expand(_SIMULATIONS, -1, -1).contiguous()
        mean = (stated / counts).nan_to_num(0.0).clamp(0, 1).expand_as(many).contiguous()
        null = _errors(torch.binomial(many, mean, generator=generator) - stated, counts)
        centre = null.mean(0)
        scale = torch.maximum(null.std(0), 1e-6 * (1 + centre))  # where nothing is left to chance
        largest = ((null - centre) / scale).nan_to_num(-torch.inf).amax(1)
        found = (self.by_task().cpu() - centre) / scale
        beyond = (largest[:, None] >= found - 1e-9).sum(0)
        return (beyond + 1) / (_SIMULATIONS + 1), null.quantile(0.95, dim=0)

    def checks(self, tests: int = 1) -> list[Check]:
        """The expected calibration error, of all tasks together or of the task that stands out.

        An alarm is an error above the limit that calibrated probabilities would show in less than
        5 % of cases.

        Args:
            tests: how many such checks are made together, to share the chance of a false alarm.
        """
        errors, (p, chance) = self.by_task().cpu(), self.p_values()
        alarms = (errors > THRESHOLDS["ece"].limit) & (p < 0.05 / tests)
        worst = 0
        if alarms.any():  # of those that chance explains least, the one that is furthest off
            least = alarms & (p == p[alarms].min())
            worst = int(torch.where(least, errors, -1.0).argmax())
        count = int(self.counts.sum() if worst == 0 else self.counts[worst - 1].sum())
        task = f"task {worst - 1}, " if worst and len(self.counts) > 1 else ""
        where = f"{task}{count} examples; up to {float(chance[worst]):.2g} by chance"
        return [Check("ece", float(errors[worst]), bool(alarms.any()), where)]


def reliability(
    probabilities: Tensor, targets: Tensor, *, observed: Tensor | None = None, bins: int = 15
) -> Reliability:
    """Reliability diagram.

    Of binary tasks, the probability of a 1 is held against the frequency of ones; of classes, that
    of the likeliest class against how often it is right.

    Args:
        probabilities: of a 1, [B] or [B, tasks] with targets of the same shape; or of classes,
            [..., C] with targets [...].
        targets: 0 or 1, or class indices; [B] also for a single task's [B, 1] and [B, 1, C].
        observed: which targets to count, bool or 0 and 1, of their shape or [B]; all if None.
        bins: of equal width.

    Raises:
        ShapeError: if shapes do not fit, or nothing is observed.
        SettingError: if an observed label is no index of a class, or a mask not 0 or 1.
        NonFiniteError: if an observed label or its probability is NaN.
    """
    integers(bins=bins)
    seen = mask_of(observed, targets)
    said, right = (part.detach() for part in stated(probabilities, targets, seen))
    mask_of(observed, said)
    tasks = said.shape[1] if said.ndim == 2 else 1
    said, right, seen = (part.reshape(-1, tasks) for part in (said.double(), right.double(), seen))
    if not seen.any():
        raise ShapeError("no target is observed: there is nothing to be calibrated about")
    said, right = (torch.where(seen, part, 0.0) for part in (said, right))
    index = (said * bins).ceil().long().sub(1).clamp(0, bins - 1)
    zero = said.new_zeros(bins, tasks)
    sums = [zero.scatter_add(0, index, part).mT for part in (said, right, seen.double())]
    return Reliability(*sums)


def _errors(surplus: Tensor, counts: Tensor) -> Tensor:
    """Errors of all tasks together and of each, [..., 1 + tasks].

    Args:
        surplus: labels less probabilities, summed in each bin, [..., tasks, bins].
        counts: [tasks, bins].
    """
    together = surplus.sum(-2).abs().sum(-1) / counts.sum()
    return torch.cat([together[..., None], surplus.abs().sum(-1) / counts.sum(-1)], -1)


def of_one_task(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Without the axis of a single task, [B, 1] or [B, 1, C], where targets are [B]."""
    if targets.ndim == 1 and probabilities.shape[:2] == (len(targets), 1):
        return probabilities[:, 0]
    return probabilities


def mask_of(observed: Tensor | None, values: Tensor) -> Tensor:
    """Which of values [B, ...] are observed, as bool of their shape.

    Args:
        observed: bool, or 0 and 1 of any dtype; of the values' shape but for the axis of a single
            task, or with leading axes only, as [B] for all tasks. None for all.
        values: what is averaged.

    Raises:
        ShapeError, SettingError: for other shapes and numbers, such as indices.
        NonFiniteError: if one is NaN and not masked.
    """
    mask = torch.ones_like(values, dtype=torch.bool) if observed is None else observed != 0
    if observed is not None and not (mask == observed).all():
        raise SettingError("observed must be bool, or 0 and 1: it is a mask, not indices")
    if mask.shape == (*values.shape, 1):
        mask = mask[..., 0]
    if mask.ndim == 0 or mask.shape != values.shape[: mask.ndim]:
        raise ShapeError(
            f"observed must have the targets' shape {list(values.shape)}, not {list(mask.shape)}"
        )
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim)).expand_as(values)
    if (mask & values.isnan()).any():
        raise NonFiniteError(
            "a target, or what is said of it, is NaN; if it was not observed, give observed="
        )
    return mask


def stated(probabilities: Tensor, targets: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The largest stated probability, and whether that outcome occurred.

    Raises:
        ShapeError: if shapes do not fit.
        SettingError: if a label that was seen is no index of a class.
    """
    probabilities = of_one_task(probabilities, targets)
    if probabilities.shape == targets.shape:
        return probabilities, targets
    if probabilities.shape[:-1] != targets.shape:
        raise ShapeError(
            f"probabilities {list(probabilities.shape)} and targets {list(targets.shape)} do not "
            "fit: give equal shapes for binary tasks, or one more axis of classes"
        )
    classes = probabilities.shape[-1]
    if (wrong := seen & ((targets < 0) | (targets >= classes))).any():
        raise SettingError(
            f"a target is {targets[wrong][0].item()}; classes are 0 to {classes - 1} (give "
            "observed= where there is none)"
        )
    likeliest = probabilities.max(-1)
    return likeliest.values, likeliest.indices == targets
