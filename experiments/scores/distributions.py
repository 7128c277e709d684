"""What predictive distributions are worth: log scores, fits, calibration, summed up over a split.

* NLL, the task's metric: −log p(y), mean over targets, in nats.
* coverage: per cent of the targets in the central 90 % of their distribution, for numbers and
  counts. A count is ranked among 199 draws; among draws equal to it, it may have any rank with the
  same chance (randomised transforms: Czado et al., 2009,
  https://doi.org/10.1111/j.1541-0420.2009.01191.x), and counts by the share of these ranks that are
  among the central 90 %.
* ECE and Brier score of classes, as in :mod:`experiments.scores.calibration`.
* The fit of the means: R² of numbers and counts, accuracy of classes, area under the ROC curve of
  two, in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.randomness import isolated_random
from experiments.scores import AreaUnderCurve, ClassAccuracy, MeanOverTasks, Score
from experiments.scores.calibration import EMPTY_SPLIT, Calibration, observed

Kind = Literal["number", "count", "classes", "binary"]

_TAIL: Final = 0.05
_DRAWS: Final = 199


class DistributionMeter:
    """NLL of heads with a task each, and what their kinds have besides.

    Args:
        kinds: ``{head: kind}``, in the order of the benchmark.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = dict(kinds)
        self._nll: dict[str, list[Tensor]] = {name: [] for name in kinds}
        self._means: dict[str, list[Tensor]] = {name: [] for name in kinds}
        self._covered: dict[str, list[Tensor]] = {name: [] for name in kinds}
        self._classes: dict[str, tuple[str, Score]] = {}
        self._calibrations: dict[str, Calibration] = {}
        for name, kind in kinds.items():
            if kind == "binary":
                self._classes[name] = "AUC", MeanOverTasks(AreaUnderCurve)
                self._calibrations[name] = Calibration([name], "binary")
            elif kind == "classes":
                self._classes[name] = "accuracy", ClassAccuracy()
                self._calibrations[name] = Calibration([name], "classes")

    def update(self, predictions: Mapping[str, Any], targets: Mapping[str, Tensor]) -> None:
        """Take in distributions of batch shape [B, 1] and targets [B, 1], NaN where missing."""
        for name, kind in self._kinds.items():
            law, target = predictions[name], targets[name]
            seen = observed(target)
            known = torch.where(seen, target, 0)
            self._nll[name].append(-law.log_prob(known)[seen].double().cpu())
            if kind in ("number", "count"):
                pairs = torch.stack([law.mean[seen], target[seen].to(law.mean)], 1)
                self._means[name].append(pairs.double().cpu())
                inside = covered(law, known, kind == "count")
                self._covered[name].append(inside[seen].double().cpu())
            else:
                logits = law.logits.flatten(1)
                self._classes[name][1].update(logits, target)
                self._calibrations[name].update(logits, target)

    def compute(self) -> list[float | None]:
        """The NLL of every task, in nats."""
        return [_mean(self._nll[name]) for name in self._kinds]

    def figures(self) -> dict[str, float | None]:
        """Fits in per cent, then calibration."""
        found: dict[str, float | None] = {}
        for name in self._kinds:
            if name in self._classes:
                title, score = self._classes[name]
                found[f"{title} {name}"] = score.compute()[0]
            else:
                found[f"R² {name}"] = _explained(torch.cat(self._means[name]))
        for name in self._kinds:
            if name in self._calibrations:
                found.update(self._calibrations[name].compute())
            else:
                share = _mean(self._covered[name])
                found[f"coverage {name}"] = None if share is None else 100 * share
        return found


def covered(law: Any, targets: Tensor, counts: bool) -> Tensor:
    """Share of each target that lies in the central 90 % of its distribution, [B, tasks].

    Args:
        law: Of batch shape [B, tasks].
        targets: [B, tasks].
        counts: Whether they are 0, 1, 2, ...
    """
    if not counts:
        below: Tensor = law.cdf(targets)
        return ((below - 0.5).abs() <= 0.5 - _TAIL).double()
    low, ties = _ranks(law, targets)
    margin = round(_TAIL * (_DRAWS + 1))
    last = (low + ties).clamp(max=_DRAWS - margin)
    return (last - low.clamp(min=margin) + 1).clamp(min=0) / (ties + 1.0)


def transformed(law: Any, targets: Tensor, counts: bool) -> Tensor:
    """P(Y ≤ y), uniform if predictions are calibrated, [B, tasks]; of counts one among the ranks.

    Args:
        law: Of batch shape [B, tasks].
        targets: [B, tasks].
        counts: Whether they are 0, 1, 2, ...
    """
    if not counts:
        below: Tensor = law.cdf(targets)
        return below
    low, ties = _ranks(law, targets)
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(low.shape, generator=generator, dtype=torch.float64).to(low.device)
    return (low + place * (ties + 1)) / (_DRAWS + 1)


def _ranks(law: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How many draws are less than the target, and how many are equal to it."""
    with isolated_random(targets.device):  # drawn alike every time, and nobody else's draws
        torch.manual_seed(0)
        draws: Tensor = law.sample((_DRAWS,))
    return (draws < targets).sum(0), (draws == targets).sum(0)


def _mean(parts: list[Tensor]) -> float | None:
    if not parts:
        raise DataError(EMPTY_SPLIT)
    values = torch.cat(parts)
    return float(values.mean()) if len(values) else None


def _explained(pairs: Tensor) -> float | None:
    """100 (1 − Σ (y − ŷ)² / Σ (y − ȳ)²), of [N, 2]; None where targets are alike."""
    mean, target = pairs.unbind(1)
    if len(target) == 0 or bool((target == target[0]).all()):
        return None
    spread = (target - target.mean()).square().sum()
    return float(100 * (1 - (target - mean).square().sum() / spread))
