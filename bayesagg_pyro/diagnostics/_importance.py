"""Pareto-smoothed importance sampling: does an approximation cover the true posterior?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesagg_pyro._pieces import CACHE, fitting
from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics._thresholds import Check, judge, tail
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import log_joint
from bayesagg_pyro.posteriors import NormalInverseGamma, Posterior
from bayesagg_pyro.targets import RawTargets

#: Differences of log-densities, sums of many terms, that are rounding alone.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Importance:
    """Importance weights from an approximation to the true posterior.

    Attributes:
        khat: shape of the Pareto tail of the weights, [tasks].
        log_weights: smoothed, normalised log-weights, [S, tasks].
        draws: the weights of the head that they belong to, [S, tasks, P].
    """

    khat: Tensor
    log_weights: Tensor
    draws: Tensor

    @property
    def efficiency(self) -> Tensor:
        """Effective over actual number of draws, [tasks]."""
        weight = self.log_weights.exp()
        return 1 / (weight.square().sum(0) * len(weight))

    @property
    def mean(self) -> Tensor:
        """Importance-weighted estimate of the true posterior mean, [tasks, P]."""
        return torch.einsum("st,stp->tp", self.log_weights.exp(), self.draws)

    def checks(self, tests: int = 1) -> list[Check]:
        """k-hat of the worst task.

        An alarm is a value above the limit, and above what one in twenty sets of posteriors with
        k = 0.5 (weights of finite variance) would show: the estimate's standard deviation is
        (1 + k) / √M with M draws in the tail, so few draws and many tasks scatter past the limit.

        Args:
            tests: how many such checks are made together, to share the chance of a false alarm.
        """
        draws, tasks = len(self.draws), self.khat.numel()
        chance = 0.5 + tail(0.05 / (tests * tasks)) * 1.5 / math.sqrt(_tail_size(draws))
        found = judge("khat", self.khat, ("task",))
        where = f"{found.where}, {draws} draws; up to {chance:.2g} by chance"
        return [replace(found, alarm=found.alarm and not found.value <= chance, where=where)]


def importance(
    head: Head,
    posterior: Posterior,
    prior: Posterior,
    features: Tensor,
    targets: RawTargets,
    *,
    draws: int = 4000,
    generator: torch.Generator | None = None,
) -> Importance:
    """Weight draws from an approximation by the true unnormalised posterior (PSIS).

    Yao et al. (2018), https://arxiv.org/abs/1802.02538.

    Args:
        head: the head.
        posterior: the approximation; one with a density.
        prior: the prior it was inferred with.
        features: the data it was inferred from, [N, d].
        targets: [N, tasks], or (values, mask).
        draws: samples S.
        generator: randomness.

    Raises:
        DtypeError: for a posterior or a prior without a density, or with one whose noise is not the
            head's, as of `inference.IntegratedNoise`, which is exact.
        SettingError: for fewer than 100 draws.
    """
    integers(100, draws=draws)
    observed = head.parse_targets(targets, len(features))
    for distribution in (posterior, prior):
        if not has_density(distribution):
            raise DtypeError(
                f"head {head.site!r}: a {type(distribution).__name__} has no density that goes "
                "with the likelihood; importance sampling needs a Gaussian, or another log_prob"
            )
    weight = posterior.sample((draws,), generator=generator).double()
    own = posterior.to(dtype=torch.float64)
    prior = prior.to(dtype=torch.float64)
    with torch.no_grad():
        # Chunks: outputs of all draws at once are [S, N, tasks].
        joint = torch.cat(
            [
                log_joint(head, part, features.detach().double(), observed, prior)
                for part in weight.split(fitting(len(features) * head.tasks, CACHE))
            ]
        )
        log_weights, khat = psis(joint - own.log_prob(weight))
    return Importance(khat, log_weights, weight)


def has_density(distribution: Posterior) -> bool:
    """Whether it has a `log_prob` of its own, of weights at the noise that the head's model has."""
    own = type(distribution).log_prob is not Posterior.log_prob
    return own and not isinstance(distribution, NormalInverseGamma)


def psis(log_ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Smooth the largest importance ratios by a generalised Pareto fit.

    Vehtari et al. (2024), https://arxiv.org/abs/1507.02646.

    Args:
        log_ratios: unnormalised, [S, ...].

    Returns:
        Normalised log-weights [S, ...] and k-hat [...]: −∞ where all ratios are equal, ∞ where
        there is no tail to fit, NaN where a ratio is NaN.
    """
    flat = log_ratios.double().flatten(1) if log_ratios.ndim > 1 else log_ratios.double()[:, None]
    found = [_smooth(column) for column in flat.unbind(1)]
    shape = log_ratios.shape
    weights = torch.stack([weight for weight, _ in found], 1).reshape(shape)
    return weights, flat.new_tensor([khat for _, khat in found]).reshape(shape[1:])


def _smooth(ratios: Tensor) -> tuple[Tensor, float]:
    count = len(ratios)
    ratios = ratios - ratios.max()
    if ratios.isnan().any():
        return ratios, math.nan
    if ratios.min() > -_ROUNDING:  # the approximation is exact: equal weights, and no tail
        return ratios - ratios.logsumexp(0), -math.inf
    size = _tail_size(count)
    order = ratios.argsort()
    last = order[-size:]
    tiny = math.log(torch.finfo(ratios.dtype).tiny)
    cutoff = max(float(ratios[order[-size - 1]]), tiny)
    excess = ratios[last].exp() - math.exp(cutoff)
    if (excess <= 0).any():  # ties, or everything below is lost to underflow
        keep = excess > 0
        last, excess = last[keep], excess[keep]
    khat = math.inf
    if len(excess) > 4:
        khat, scale = _pareto_fit(excess)
        level = (torch.arange(len(excess), dtype=ratios.dtype) + 0.5) / len(excess)
        level = level.to(ratios.device)
        quantile = (
            -torch.log1p(-level) if khat == 0 else torch.expm1(-khat * torch.log1p(-level)) / khat
        )
        smoothed = (quantile * scale + math.exp(cutoff)).log()
        ratios = ratios.clone()
        ratios[last] = smoothed.clamp(max=0)
    return ratios - ratios.logsumexp(0), khat


def _tail_size(draws: int) -> int:
    """Number of draws that the tail is fitted to."""
    return math.ceil(min(0.2 * draws, 3 * math.sqrt(draws)))


def _pareto_fit(excess: Tensor) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution.

    Zhang and Stephens (2009), https://doi.org/10.1198/tech.2009.08017. The shape is drawn a little
    towards 0.5, as Vehtari et al. do. `excess` is ascending.
    """
    count = len(excess)
    points = 30 + int(math.sqrt(count))
    index = torch.arange(1, points + 1, dtype=excess.dtype, device=excess.device)
    quarter = excess[int(count / 4 + 0.5) - 1]
    theta = (1 - (points / (index - 0.5)).sqrt()) / (3 * quarter) + 1 / excess[-1]
    shape = torch.log1p(-theta[:, None] * excess).mean(1)
    likelihood = count * ((-theta / shape).log() - shape - 1)
    weight = likelihood.softmax(0)
    weight = torch.where(weight >= 10 * torch.finfo(weight.dtype).eps, weight, 0.0)
    best = (theta * weight).sum() / weight.sum()
    fitted = float(torch.log1p(-best * excess).mean())
    scale = -fitted / float(best)
    return (count * fitted + 10 * 0.5) / (count + 10), scale
