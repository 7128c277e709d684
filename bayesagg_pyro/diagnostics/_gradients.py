"""Is the distribution of the gradient right, close to Gaussian, and more than noise?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics._thresholds import Check, judge, judge_known, tail
from bayesagg_pyro.gradients import GradientDistribution

#: Draws held at once: [chunk, tasks, B, d].
_CHUNK = 256


@dataclass(frozen=True)
class Moments:
    """Stated moments against sampled ones, [tasks, B, d].

    Attributes:
        mean_z: (stated − sampled) mean in standard errors; 0 where constant, NaN where not
            observed, as all of these.
        variance_z: likewise for the variance, its standard error from the fourth moment, or that
            of the task's median gradient if larger.
        mean_error: (stated − sampled) mean in sampled standard deviations.
        variance_error: (stated − sampled) variance over the sampled variance.
        draws: samples of each.
    """

    mean_z: Tensor
    variance_z: Tensor
    mean_error: Tensor
    variance_error: Tensor
    draws: int

    def unexplained(self) -> Tensor:
        """Errors of mean and variance beyond those of sampling, [2, tasks, B, d].

        That is the error less as many standard errors as the largest of that many normal numbers
        passes once in a thousand times (Bonferroni, so valid under any dependence).
        """
        scores = torch.stack([self.mean_z, self.variance_z]).abs()
        bound = tail(1e-3 / (2 * max(1, int((~scores.isnan()).sum()))))
        errors = torch.stack([self.mean_error, self.variance_error]).abs()
        return torch.where(scores > bound, errors * (1 - bound / scores), 0.0)

    def checks(self) -> list[Check]:
        """The 99.9 % quantile of what is unexplained: one heavy tail makes no alarm."""
        found = torch.where(self.mean_z.isnan(), torch.nan, self.unexplained())
        seen = (~found.isnan()).flatten().nonzero().squeeze(1)
        if not len(seen):
            return []
        ordered = seen[found.flatten()[seen].argsort()]
        index = ordered[int(0.999 * (len(ordered) - 1))].cpu()
        moment, task, example, dimension = (int(i) for i in torch.unravel_index(index, found.shape))
        place = f"{('mean', 'variance')[moment]}, task {task}, example {example}, "
        place += f"dimension {dimension}, {self.draws} draws"
        return [replace(judge("moments", found.flatten()[index]), where=place)]


def moments(
    grad: GradientDistribution, *, draws: int = 4096, generator: torch.Generator | None = None
) -> Moments:
    """Compare the stated mean and variance with samples from the same distribution.

    Args:
        grad: from any estimator that can be sampled.
        draws: samples; the standard error of a variance is about its √(2/draws), more for heavy
            tails, where few draws underestimate it.
        generator: randomness.

    Raises:
        StateError: if the distribution cannot be sampled.
        SettingError: for fewer than 100 draws.
    """
    sampled = _powers(grad, draws, generator)
    # Few draws of a heavy tail show neither its variance nor how far that is off: errors are those
    # of the larger variance, and of the kurtosis that gradients of the task typically show.
    larger = torch.maximum(sampled.variance, grad.variance.double())
    kurtosis = sampled.fourth / sampled.variance.square()  # NaN where nothing varies
    typical = kurtosis.flatten(1).nanmedian(1).values[:, None, None]
    kurtosis = torch.maximum(kurtosis.nan_to_num(1.0), typical.nan_to_num(1.0))
    variance_error = larger * ((kurtosis - 1).clamp(min=0) / draws).sqrt()
    differences = grad.mean - sampled.mean, grad.variance - sampled.variance
    spread = sampled.variance.clamp(min=torch.finfo(sampled.variance.dtype).tiny)
    scores = (
        _z(differences[0], (larger / draws).sqrt(), grad.mean),
        _z(differences[1], variance_error, grad.variance),
    )
    found = (
        *scores,
        torch.where(scores[0] == 0, 0.0, differences[0] / spread.sqrt()),
        torch.where(scores[1] == 0, 0.0, differences[1] / spread),
    )
    mean_z, variance_z, mean_error, variance_error = (seen_only(part, grad) for part in found)
    return Moments(mean_z, variance_z, mean_error, variance_error, draws)


@dataclass(frozen=True)
class Normality:
    """How far each gradient is from the Gaussian with its moments, [tasks, B, d].

    NaN where a gradient does not vary or is not observed.

    Attributes:
        skewness: E[x³] of the standardised gradient.
        excess_kurtosis: E[x⁴] − 3.
        energy: energy distance 2 E|x − z| − E|z − z'| − E|x − x'| to a standard normal z.
    """

    skewness: Tensor
    excess_kurtosis: Tensor
    energy: Tensor

    def checks(self) -> list[Check]:
        """Medians over all gradients of the absolute values."""
        found = {
            "skewness": self.skewness.abs(),
            "kurtosis": self.excess_kurtosis.abs(),
            "energy": self.energy,
        }
        return [
            check
            for key, value in found.items()
            for check in judge_known(key, value.flatten().nanmedian())
        ]


def normality(
    grad: GradientDistribution, *, draws: int = 4096, generator: torch.Generator | None = None
) -> Normality:
    """Shape of each gradient's distribution, from samples.

    Args:
        grad: from any estimator that can be sampled.
        draws: samples; the energy distance of a true Gaussian comes out at about 1 / draws.
        generator: randomness.

    Raises:
        StateError: if the distribution cannot be sampled.
        SettingError: for fewer than 100 draws.
    """
    sampled = _powers(grad, draws, generator, keep=True)
    assert sampled.kept is not None
    deviation = sampled.variance.sqrt()
    varies = deviation > 1e-12 * sampled.mean.abs()
    safe = torch.where(varies, deviation, 1.0)
    energy = torch.stack(  # one task at a time: sorting holds several copies
        [
            energy_to_normal((sampled.kept[:, task] - sampled.mean[task]) / safe[task])
            for task in range(grad.tasks)
        ]
    )
    return Normality(
        seen_only(torch.where(varies, sampled.third / safe**3, torch.nan), grad),
        seen_only(torch.where(varies, sampled.fourth / safe**4 - 3, torch.nan), grad),
        seen_only(torch.where(varies, energy, torch.nan), grad),
    )


def energy_to_normal(samples: Tensor) -> Tensor:
    """Energy distance between samples and the standard normal.

    Székely and Rizzo (2005), https://doi.org/10.1016/j.jmva.2003.12.002.

    E|a − z| = 2 φ(a) + a (2 Φ(a) − 1) and E|z − z'| = 2/√π are exact; E|x − x'| comes from the
    order statistics.

    Args:
        samples: [S, ...].

    Returns:
        [...].
    """
    count = len(samples)
    density = torch.exp(-0.5 * samples.square()) / math.sqrt(2 * math.pi)
    to_normal = (2 * density + samples * torch.special.erf(samples / math.sqrt(2))).mean(0)
    ordered = samples.sort(0).values
    rank = torch.arange(1, count + 1, dtype=samples.dtype, device=samples.device)
    weight = (2 * rank - count - 1).reshape(-1, *[1] * (samples.ndim - 1))
    within = 2 * (weight * ordered).sum(0) / count**2
    distance: Tensor = 2 * to_normal - 2 / math.sqrt(math.pi) - within
    return distance.clamp(min=0)


@dataclass(frozen=True)
class SignalToNoise:
    """|E g| / std g, medians over observed examples.

    Attributes:
        by_task: over dimensions too, [tasks]; NaN for a task without any target.
        by_dimension: [tasks, d].
    """

    by_task: Tensor
    by_dimension: Tensor

    def checks(self) -> list[Check]:
        """The task with the weakest signal, among those that were observed."""
        return judge_known("snr", self.by_task, ("task",))


def signal_to_noise(grad: GradientDistribution) -> SignalToNoise:
    """Signal-to-noise ratio of gradients; infinite where a gradient has no variance."""
    ratio = grad.mean.double().abs() / grad.variance.double().sqrt()
    ratio = seen_only(ratio, grad)
    return SignalToNoise(ratio.flatten(1).nanmedian(1).values, ratio.nanmedian(1).values)


@dataclass(frozen=True)
class _Powers:
    """Sample mean and central moments, [tasks, B, d], float64."""

    mean: Tensor
    variance: Tensor
    third: Tensor
    fourth: Tensor
    kept: Tensor | None


def _powers(
    grad: GradientDistribution, draws: int, generator: torch.Generator | None, keep: bool = False
) -> _Powers:
    """Central moments in two passes over the same draws, kept as they are."""
    integers(100, draws=draws)
    parts = [
        grad.sample((min(_CHUNK, draws - start),), generator=generator).double()
        for start in range(0, draws, _CHUNK)
    ]
    mean = torch.stack([part.sum(0) for part in parts]).sum(0) / draws
    sums = [
        torch.stack([((part - mean) ** power).sum(0) for part in parts]).sum(0)
        for power in (2, 3, 4)
    ]
    return _Powers(
        mean,
        sums[0] / (draws - 1),
        sums[1] / draws,
        sums[2] / draws,
        torch.cat(parts) if keep else None,
    )


def seen_only(values: Tensor, grad: GradientDistribution) -> Tensor:
    """NaN where nothing was observed, which is not a gradient of zero."""
    if grad.observed is None:
        return values
    return torch.where(grad.observed[..., None], values, torch.nan)


def _z(difference: Tensor, error: Tensor, stated: Tensor) -> Tensor:
    """Standard scores; a difference within the stated moment's own precision counts as none."""
    rounding = 64 * torch.finfo(stated.dtype).eps * stated.abs()
    return torch.where(
        difference.abs() <= rounding, 0.0, difference / (error + rounding).clamp(min=1e-300)
    ).double()
