"""Limits beyond which a diagnostic raises an alarm, and the check of a value against its limit.

Sources: Yao et al. (2018), https://arxiv.org/abs/1802.02538; Vehtari et al. (2024),
https://arxiv.org/abs/1507.02646, and (2021), https://arxiv.org/abs/1903.08008; Talts et al. (2018),
https://arxiv.org/abs/1804.06788; Gneiting et al. (2007),
https://doi.org/10.1111/j.1467-9868.2007.00587.x; Bulmer (1979), Principles of Statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Threshold:
    """A common threshold, and what it means to exceed it.

    Attributes:
        label: name of the quantity, as in reports.
        limit: the value at which to alarm.
        side: whether values above or below the limit alarm.
        meaning: what an alarm says, in plain words.
        source: where the limit comes from.
    """

    label: str
    limit: float
    side: Literal["above", "below"]
    meaning: str
    source: str


@dataclass(frozen=True)
class Check:
    """A value compared with its threshold.

    Attributes:
        key: which threshold, a key of `THRESHOLDS`.
        value: the worst value that was found; NaN alarms.
        alarm: whether it passes the limit.
        where: which task, weight or dimension has the worst value.
    """

    key: str
    value: float
    alarm: bool
    where: str = ""

    @property
    def threshold(self) -> Threshold:
        """The limit and its meaning."""
        return THRESHOLDS[self.key]

    @property
    def worry(self) -> bool:
        """Whether something is not what it claims, or a task is harmed; else it is as it may be."""
        return self.alarm and self.key not in _DESCRIBED

    def __str__(self) -> str:
        sign = {"above": "≤", "below": "≥"}[self.threshold.side]
        place = f" at {self.where}" if self.where else ""
        verdict = "ALARM" if self.alarm else "ok"
        return (
            f"{verdict:5} {self.threshold.label} = {self.value:.3g}{place} "
            f"(wanted {sign} {self.threshold.limit:g})"
        )


def judge(
    key: str, values: Tensor | float, axes: Sequence[str] = (), *, seen: Tensor | None = None
) -> Check:
    """Compare the worst of `values` with the threshold `key`.

    Args:
        key: a key of `THRESHOLDS`.
        values: any shape; one NaN makes an alarm.
        axes: names of the axes, for saying where the worst value is.
        seen: bool, of the shape of `values`: which to look at; all if None.
    """
    threshold = THRESHOLDS[key]
    above = threshold.side == "above"
    tensor = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    if seen is not None:
        tensor = torch.where(seen.cpu(), tensor, -math.inf if above else math.inf)
    flat = tensor.reshape(-1)
    bad = flat.isnan().nonzero()
    worst = flat.argmax() if above else flat.argmin()
    index = int(bad[0] if len(bad) else worst)
    value = float(flat[index])
    beyond = value > threshold.limit if above else value < threshold.limit
    place = [int(i) for i in torch.unravel_index(torch.tensor(index), tensor.shape)]
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=False))
    return Check(key, value, beyond or math.isnan(value), where)


def judge_known(key: str, values: Tensor, axes: Sequence[str] = ()) -> list[Check]:
    """The check of values that are NaN where nothing was observed; none where all are."""
    known = ~values.isnan()
    return [judge(key, values, axes, seen=known)] if known.any() else []


def owned(check: Check, owner: str, tasks: int = 0) -> Check:
    """The check with the head's name in it, which for a head with one task says the task."""
    where = re.sub(r"^task 0(, | of |$)", "", check.where) if tasks == 1 else check.where
    return replace(check, where=f"{owner}: {where}" if where else owner)


def tail(probability: float) -> float:
    """The z that a standard normal number exceeds with this probability."""
    return math.sqrt(2) * float(torch.special.erfinv(torch.tensor(1 - 2 * probability).double()))


#: Alarms that sound training may raise: heads sure of little, gradients that are not Gaussian.
_DESCRIBED = {
    "skewness", "kurtosis", "energy", "snr", "diagonal", "effective_tasks", "conflict",
    "effective_rank",
}  # fmt: skip

# fmt: off
#: A row each: the quantity and its limit, what an alarm says, where the limit comes from.
THRESHOLDS: dict[str, Threshold] = {
    "z_score": Threshold("distance of means in reference standard deviations", 0.3, "above",
        "The approximation is centred elsewhere than the reference: point predictions differ.",
        "a third of a standard deviation; MCMC error of 1,000 effective draws is about 0.03"),
    "covariance_ratio": Threshold(
        "standard deviation off the reference, as a factor", 1.25, "above",
        "The approximation is too narrow or too wide in some direction, so gradients get the "
        "wrong precision and tasks the wrong weight.",
        "a variance wrong by more than about half"),
    "khat": Threshold("PSIS k-hat", 0.7, "above",
        "The approximation misses mass of the true posterior so badly that even importance "
        "weights cannot mend it.",
        "Yao et al. (2018); Vehtari et al. (2024); from few draws, what 5 % of the posteriors "
        "with a k-hat of 0.5 (finite variance) pass by chance"),
    "rhat": Threshold("rank-normalised split R-hat", 1.01, "above",
        "Chains disagree: the sampler has not converged. Run longer.",
        "Vehtari et al. (2021)"),
    "ess": Threshold("bulk effective sample size", 400.0, "below",
        "Too few independent draws for stable moments. Run longer.",
        "Vehtari et al. (2021), 100 for each of four chains"),
    "sbc": Threshold("p-value of uniform ranks, for all tests together", 0.01, "below",
        "The scheme does not give the posterior of its own model: ranks of the truth are not "
        "uniform. A ∪ shape is overconfidence, a ∩ shape underconfidence, a slope is bias.",
        "Talts et al. (2018)"),
    "coverage": Threshold(
        "coverage of an interval off its nominal value, in binomial standard errors", 3.3, "above",
        "Credible intervals hold the truth more or less often than they say.",
        "0.1 % of a normal distribution, two-sided"),
    "condition": Threshold("condition number of the precision", 1e12, "above",
        "Directions of the weights differ so much in certainty that float64 keeps four digits or "
        "fewer; the posterior of the weakest is noise. Standardise features or strengthen the "
        "prior.",
        "float64 resolves 1e16"),
    "jitter": Threshold("jitter that a factorisation took", 0.0, "above",
        "The precision was not positive definite in floating point and has been changed.",
        "none should be needed"),
    "moments": Threshold(
        "stated off sampled moments beyond sampling error (mean in std, variance relative)",
        0.1, "above",
        "The stated mean or variance is not that of this loss and posterior: a formula is wrong, "
        "or an estimator draws too few samples.",
        "a tenth changes no weight by more than a tenth"),
    "skewness": Threshold("skewness of a gradient", 1.0, "above",
        "Gradients are lopsided: mean and variance say less than a Gaussian reading suggests.",
        "Bulmer (1979): highly skewed"),
    "kurtosis": Threshold("excess kurtosis of a gradient", 3.0, "above",
        "Gradients have heavy tails: the variance is ruled by rare weights.",
        "tails of a Laplace distribution"),
    "energy": Threshold("energy distance to the matched Gaussian (standardised)", 0.03, "above",
        "The distribution of a gradient is not close to the Gaussian that stands for it.",
        "an exponential distribution is 0.05 away, a uniform one 0.01"),
    "snr": Threshold("median signal-to-noise ratio of a task's gradient", 0.5, "below",
        "The posterior does not know which way this task's features should go: mostly noise.",
        "half a standard deviation from zero"),
    "diagonal": Threshold("cosine between the full and the diagonal direction", 0.7, "below",
        "Correlations between feature dimensions matter: the diagonal rule goes elsewhere than "
        "the full one.",
        "45 degrees"),
    "effective_tasks": Threshold(
        "effective number of tasks, from 0 (one decides) to 1 (all weigh the same)", 0.1, "below",
        "One task decides each dimension of the update; the others are hardly heard.",
        "a tenth of the way from one task to all"),
    "conflict": Threshold("share of examples on which two tasks surely disagree", 0.5, "above",
        "On most examples two tasks pull in opposite directions by more than twice the "
        "uncertainty: one of them loses.",
        "half of the examples at 2 standard deviations"),
    "share": Threshold(
        "share of the update owed to a task, times the number of tasks", -0.1, "below",
        "The update goes against this task.",
        "0 with some tolerance"),
    "uncertainty_pull": Threshold("share of the term 2 S h in a task's gradient", 0.5, "above",
        "Uncertain features are being pulled to zero more than errors are corrected; ReLU units "
        "may die.",
        "half of the gradient"),
    "first_order": Threshold(
        "first-order change of a task's loss, relative to the best direction of that length",
        0.05, "above",
        "To first order this step raises the loss of a task.",
        "0 with some tolerance"),
    "live_units": Threshold("share of features that vary over the batch", 0.75, "below",
        "Features are constant (dead ReLU units): the heads cannot use them.",
        "a quarter of the width lost"),
    "effective_rank": Threshold("effective rank of the features over their number", 0.1, "below",
        "Features are almost copies of each other: heads cannot tell them apart and their weights"
        " have wide posteriors.",
        "a tenth of the width"),
    "stale_cost": Threshold(
        "rise of a task's loss from the prior's mean being out of date, relative", 0.1, "above",
        "The features have moved on since the prior was made. Refresh it more often.",
        "a tenth of the loss"),
    "ece": Threshold("expected calibration error", 0.05, "above",
        "Stated probabilities are off by five points on average, and by more than chance makes of"
        " calibrated ones for as many examples.",
        "5 percentage points, and less likely than 5 % by chance"),
    "pit": Threshold("p-value of uniform PIT values (Kolmogorov-Smirnov)", 0.01, "below",
        "Predictive distributions are not calibrated: a ∪ shape is overconfidence, a ∩ shape "
        "underconfidence, a slope is bias.",
        "Gneiting et al. (2007)"),
    "epistemic": Threshold(
        "rank correlation of stated uncertainty and absolute error", 0.0, "below",
        "Uncertainty says nothing about where errors are large.",
        "positive means informative; below zero by more than chance in 5 % of cases"),
}
# fmt: on
