"""Whether stated probabilities and uncertainties agree with what is observed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics._calibration import uniformity
from bayesagg_pyro.diagnostics._reliability import mask_of, of_one_task, stated
from bayesagg_pyro.diagnostics._thresholds import THRESHOLDS, Check, judge_known, tail
from bayesagg_pyro.errors import ShapeError


def brier(probabilities: Tensor, targets: Tensor, *, observed: Tensor | None = None) -> Tensor:
    """Mean squared error of probabilities, []: over binary targets, or summed over classes.

    Args:
        probabilities: as for `reliability`.
        targets: as for `reliability`.
        observed: as for `reliability`.

    Raises:
        ShapeError, SettingError, NonFiniteError: as for `reliability`.
    """
    probabilities = of_one_task(probabilities, targets)
    if probabilities.shape == targets.shape:
        error = (probabilities - targets.to(probabilities.dtype)).square()
    else:
        seen = mask_of(observed, targets)
        stated(probabilities, targets, seen)
        labels = torch.where(seen, targets, 0).long()
        one_hot = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
        error = (probabilities - one_hot).square().sum(-1)
    return _observed_mean(error, observed)


def negative_log_density(
    predictive: Any, targets: Tensor, *, observed: Tensor | None = None
) -> Tensor:
    """Mean −log p(y | h) of predictive distributions, in nats, [].

    Args:
        predictive: a distribution of batch shape [B, tasks], as from `BayesAgg.predictive`.
        targets: [B, tasks], or [B] for a single task.
        observed: as for `reliability`.

    Raises:
        ShapeError, SettingError, NonFiniteError: as for `reliability`.
    """
    density: Tensor = predictive.log_prob(targets)
    return _observed_mean(-density, observed)


@dataclass(frozen=True)
class Pit:
    """Probability integral transforms F(y), uniform for calibrated predictions.

    Gneiting et al. (2007), https://doi.org/10.1111/j.1467-9868.2007.00587.x.

    Attributes:
        values: of the observed targets of each task, {task index: [n]}.
        p_values: chi-square and Kolmogorov-Smirnov tests, [tasks, 2]; NaN with fewer than 20.
    """

    values: dict[int, Tensor]
    p_values: Tensor

    def checks(self, tests: int = 1) -> list[Check]:
        """The Kolmogorov-Smirnov test, Bonferroni over tasks.

        Args:
            tests: how many such checks are made together, to share the chance of a false alarm.
        """
        p = self.p_values[:, 1]
        together = (p * (int((~p.isnan()).sum()) * tests)).clamp(max=1)
        counts = len(self.values[int(together.nan_to_num(2.0).argmin())])
        found = judge_known("pit", together, ("task",))
        return [replace(check, where=f"{check.where} of {counts} examples") for check in found]


def pit(predictive: Any, targets: Tensor, *, observed: Tensor | None = None) -> Pit:
    """PIT values of predictive distributions, for real targets.

    Args:
        predictive: a distribution with a `cdf`, of batch shape [B, tasks].
        targets: [B, tasks], or [B] for a single task.
        observed: as for `reliability`.

    Raises:
        ShapeError, SettingError: if shapes do not fit, or a mask is not 0 or 1.
        NonFiniteError: if an observed target is NaN.
    """
    values: Tensor = predictive.cdf(targets).detach()
    seen = mask_of(observed, values)
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
        count: predictions.
    """

    deviation: Tensor
    error: Tensor
    correlation: Tensor
    count: int

    def checks(self, tests: int = 1) -> list[Check]:
        """The correlation: an alarm if it is below zero by more than chance in 5 % of cases.

        Args:
            tests: how many such checks are made together, to share the chance of a false alarm.
        """
        chance = tail(0.05 / tests) / math.sqrt(self.count - 1)
        value = float(self.correlation)
        where = f"{self.count} predictions; from {-chance:.2g} by chance"
        return [Check("epistemic", value, value < THRESHOLDS["epistemic"].limit - chance, where)]


def epistemic_against_error(
    deviation: Tensor, error: Tensor, *, observed: Tensor | None = None, groups: int = 10
) -> Epistemic:
    """Whether larger uncertainty comes with larger error.

    Args:
        deviation: stated standard deviations, any shape.
        error: y − prediction, same shape.
        observed: as for `reliability`.
        groups: of equal size.

    Raises:
        SettingError: if a mask is not 0 or 1, or `groups` not positive.
        NonFiniteError: if an observed number is NaN.
        ShapeError: if shapes differ, or there are fewer observations than groups.
    """
    if deviation.shape != error.shape:
        raise ShapeError(
            f"deviations {list(deviation.shape)} and errors {list(error.shape)} must have one shape"
        )
    integers(groups=groups)
    seen = mask_of(observed, error) & mask_of(observed, deviation)
    deviation, error = deviation[seen], error[seen]
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
        len(error),
    )


def _ranks(values: Tensor) -> Tensor:
    """Ranks with ties averaged."""
    _, inverse, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).to(values.dtype)
    ranks: Tensor = (last - (count - 1) / 2)[inverse]
    return ranks


def _observed_mean(values: Tensor, observed: Tensor | None) -> Tensor:
    seen = mask_of(observed, values)
    if not seen.any():
        raise ShapeError("no target is observed: there is nothing to average")
    return values.mean() if observed is None else values[seen].mean()
