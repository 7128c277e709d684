"""Whether stated probabilities and uncertainties hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics._calibration import uniformity
from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.errors import ShapeError

__all__ = [
    "Epistemic",
    "Pit",
    "Reliability",
    "brier",
    "epistemic_against_error",
    "negative_log_density",
    "pit",
    "reliability",
]


@dataclass(frozen=True)
class Reliability:
    """Stated probabilities against observed frequencies, in bins of equal width.

    Attributes:
        confidence: mean stated probability of each bin, [bins]; NaN where empty.
        frequency: observed frequency of what was stated, [bins]; NaN where empty.
        count: predictions per bin, [bins].
    """

    confidence: Tensor
    frequency: Tensor
    count: Tensor

    @property
    def ece(self) -> Tensor:
        """Expected calibration error: mean |confidence − frequency| over predictions, []."""
        return (self._gap() * self.count).sum() / self.count.sum()

    @property
    def mce(self) -> Tensor:
        """Maximum calibration error over bins, []."""
        return self._gap().amax()

    def _gap(self) -> Tensor:
        return (self.confidence - self.frequency).abs().nan_to_num(0.0)

    def checks(self) -> list[Check]:
        """The expected calibration error."""
        return [judge("ece", self.ece)]


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
        observed: which targets to count, of their shape; all if None.
        bins: of equal width.

    Raises:
        ShapeError: if shapes do not fit, or nothing is observed.
    """
    stated, right = _stated(probabilities, targets)
    if observed is not None:
        stated, right = stated[observed], right[observed]
    stated, right = stated.flatten().double(), right.flatten().double()
    if not len(stated):
        raise ShapeError("no target is observed: there is nothing to be calibrated about")
    index = (stated * bins).ceil().long().sub(1).clamp(0, bins - 1)
    zero = stated.new_zeros(bins)
    count = zero.index_add(0, index, torch.ones_like(stated))
    return Reliability(
        zero.index_add(0, index, stated) / count, zero.index_add(0, index, right) / count, count
    )


def _of_one_task(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Without the axis of a single task, [B, 1] or [B, 1, C], where targets are [B]."""
    if targets.ndim == 1 and probabilities.shape[:2] == (len(targets), 1):
        return probabilities[:, 0]
    return probabilities


def _stated(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    probabilities = _of_one_task(probabilities, targets)
    if probabilities.shape == targets.shape:
        return probabilities, targets
    if probabilities.shape[:-1] != targets.shape:
        raise ShapeError(
            f"probabilities {list(probabilities.shape)} and targets {list(targets.shape)} do not "
            "fit: give equal shapes for binary tasks, or one more axis of classes"
        )
    likeliest = probabilities.max(-1)
    return likeliest.values, likeliest.indices == targets


def brier(probabilities: Tensor, targets: Tensor, *, observed: Tensor | None = None) -> Tensor:
    """Mean squared error of probabilities, []: over binary targets, or summed over classes.

    Args:
        probabilities: as for `reliability`.
        targets: as for `reliability`.
        observed: as for `reliability`.
    """
    probabilities = _of_one_task(probabilities, targets)
    if probabilities.shape == targets.shape:
        error = (probabilities - targets.to(probabilities.dtype)).square()
    else:
        _stated(probabilities, targets)
        one_hot = torch.nn.functional.one_hot(targets.long(), probabilities.shape[-1])
        error = (probabilities - one_hot).square().sum(-1)
    return _observed_mean(error, observed)


def negative_log_density(
    predictive: Any, targets: Tensor, *, observed: Tensor | None = None
) -> Tensor:
    """Mean −log p(y | h) of predictive distributions, in nats, [].

    Args:
        predictive: a distribution of batch shape [B, tasks], as from `BayesAgg.predictive`.
        targets: [B, tasks], or [B] for a single task.
        observed: of their shape; all if None.
    """
    density: Tensor = predictive.log_prob(targets)
    return _observed_mean(-density, observed)


@dataclass(frozen=True)
class Pit:
    """Probability integral transforms F(y), uniform for calibrated predictions.

    Attributes:
        values: of the observed targets of each task, {task index: [n]}.
        p_values: chi-square and Kolmogorov-Smirnov tests, [tasks, 2]; NaN with fewer than 20.
    """

    values: dict[int, Tensor]
    p_values: Tensor

    def checks(self) -> list[Check]:
        """The Kolmogorov-Smirnov test, Bonferroni over tasks."""
        tested = self.p_values[:, 1]
        tested = tested[~tested.isnan()]
        return [judge("pit", (tested * len(tested)).clamp(max=1), ("task",))] if len(tested) else []


def pit(predictive: Any, targets: Tensor, *, observed: Tensor | None = None) -> Pit:
    """PIT values of predictions of real targets.

    Args:
        predictive: a distribution with a `cdf`, of batch shape [B, tasks].
        targets: [B, tasks], or [B] for a single task.
        observed: of their shape; all if None.

    Raises:
        ShapeError: if shapes do not fit.
    """
    values: Tensor = predictive.cdf(targets).detach()
    seen = torch.ones_like(values, dtype=torch.bool)
    if observed is not None:
        if observed.shape not in (values.shape, targets.shape):
            raise ShapeError(
                f"observed must have the targets' shape {list(targets.shape)}, "
                f"not {list(observed.shape)}"
            )
        seen = observed.reshape(values.shape)
    found = {task: values[seen[:, task], task] for task in range(values.shape[1])}
    tests = [
        torch.stack(uniformity(v, bins=max(2, min(20, len(v) // 10))))
        if len(v) >= 20
        else torch.full((2,), torch.nan, dtype=torch.float64)
        for v in found.values()
    ]
    return Pit(found, torch.stack([t.double().cpu() for t in tests]))


@dataclass(frozen=True)
class Epistemic:
    """Stated uncertainty against actual error, in groups of equal size by uncertainty.

    Attributes:
        deviation: root mean square stated standard deviation of each group, [groups].
        error: root mean square error of each group, [groups].
        correlation: Spearman's, of standard deviations and absolute errors, [].
    """

    deviation: Tensor
    error: Tensor
    correlation: Tensor

    def checks(self) -> list[Check]:
        """The correlation."""
        return [judge("epistemic", self.correlation)]


def epistemic_against_error(
    deviation: Tensor, error: Tensor, *, observed: Tensor | None = None, groups: int = 10
) -> Epistemic:
    """Whether larger uncertainty goes with larger error.

    Args:
        deviation: stated standard deviations, any shape.
        error: y − prediction, same shape.
        observed: which to count; all if None.
        groups: of equal size.

    Raises:
        ShapeError: if shapes differ, or there are fewer observations than groups.
    """
    if deviation.shape != error.shape:
        raise ShapeError(
            f"deviations {list(deviation.shape)} and errors {list(error.shape)} must have one shape"
        )
    if observed is not None:
        deviation, error = deviation[observed], error[observed]
    deviation, error = deviation.detach().flatten().double(), error.detach().flatten().double()
    if len(error) < max(groups, 2):
        raise ShapeError(f"{len(error)} observations cannot make {groups} groups; lower groups")
    order = deviation.argsort()
    parts = [
        (deviation[rows].square().mean().sqrt(), error[rows].square().mean().sqrt())
        for rows in order.tensor_split(groups)
    ]
    ranks = torch.stack([_ranks(deviation), _ranks(error.abs())])
    correlation = torch.corrcoef(ranks)[0, 1].nan_to_num(0.0)  # constant: says nothing
    return Epistemic(
        torch.stack([part[0] for part in parts]),
        torch.stack([part[1] for part in parts]),
        correlation,
    )


def _ranks(values: Tensor) -> Tensor:
    """Ranks with ties averaged."""
    _, inverse, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).to(values.dtype)
    ranks: Tensor = (last - (count - 1) / 2)[inverse]
    return ranks


def _observed_mean(values: Tensor, observed: Tensor | None) -> Tensor:
    if observed is None:
        return values.mean()
    if not observed.any():
        raise ShapeError("no target is observed: there is nothing to average")
    return values[observed].mean()
