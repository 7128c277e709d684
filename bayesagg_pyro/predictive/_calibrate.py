"""How wide predictions must be for targets that training has not seen: one number for each task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._optimise import climb, likeliest_noise, search
from bayesagg_pyro.heads import Bernoulli, Categorical, Gaussian, Head, OnePredictor, Ordinal
from bayesagg_pyro.posteriors import GaussianFamily, NormalInverseGamma, Posterior
from bayesagg_pyro.predictive._classes import two_classes
from bayesagg_pyro.predictive._distribution import log_likelihood
from bayesagg_pyro.predictive._outputs import (
    SAMPLES,
    at_temperature,
    divided,
    drawn_outputs,
    joint_outputs,
    predictor,
)
from bayesagg_pyro.quadrature import normal_rule
from bayesagg_pyro.targets import Targets

#: Between which temperatures are looked for, and how closely.
_RANGE, _POINTS, _STEPS = 100.0, 9, 14
#: At how many of the examples they are looked for first; at more of them, near those found alone.
_FEW = 1024, 8192
#: Nodes for a density at one temperature.
_NODES = 128


@torch.no_grad()
def calibration(
    head: Head, posterior: Posterior, examples: Sequence[tuple[Tensor, Targets]]
) -> Tensor | None:
    """The noise scale of `Gaussian` heads without a given one, or the temperature of classes.

    τ² is the mean of (y − hᵀm)² / (1 + hᵀSh), S for τ = 1, or that of the draws. The temperature T
    divides the logits, of ordered classes the predictor and the cut-points, at every draw of the
    weights (Guo et al., 2017, https://proceedings.mlr.press/v70/guo17a.html), and has the highest
    log predictive density. Both under priors, log T ~ N(0, 1) and log τ ~ N(that of the τ in force,
    1): labels that are all predicted right would otherwise ask for T = 0, and one that is predicted
    exactly for τ = 0. Weights of examples count as repetitions.

    Args:
        head: the head.
        posterior: over its weights.
        examples: features [B, d] and parsed targets [B, tasks], batch after batch.

    Returns:
        [tasks], what is in force for a task without a target that counts; None where nothing is to
        choose.
    """
    if isinstance(head, Gaussian):
        estimated = head.noise_source == "estimated"
        own = estimated and head.is_still(Gaussian, "outputs", "likelihood")
        if own and not isinstance(posterior, NormalInverseGamma):
            return _noise_scale(head, posterior, examples)
    elif any(head.is_still(kind, "likelihood") for kind in (Bernoulli, Categorical, Ordinal)):
        return _temperature(head, posterior, examples)
    return None


def calibrated(head: Head, posterior: Posterior, found: Tensor) -> Posterior:
    """The posterior with the noise or temperature that `calibration` found, for predictions."""
    if isinstance(head, Gaussian):
        return posterior.with_info(noise_scale=found)
    return posterior.with_info(temperature=found)


def _noise_scale(
    head: Gaussian, posterior: Posterior, examples: Sequence[tuple[Tensor, Targets]]
) -> Tensor:
    squares, count = posterior.mean.new_zeros(2, head.tasks)
    for features, targets in examples:
        if isinstance(posterior, GaussianFamily):
            mean, variance = predictor(head, posterior, features)
        else:
            drawn = torch.cat(list(drawn_outputs(head, posterior, features, SAMPLES, None)))
            mean, variance = drawn.mean(0), drawn.var(0)
        width = 1 + variance / head.noise_scale.to(variance).square()
        square = (targets.values.to(mean) - mean).square() / width
        weight = targets.factor(mean.dtype)
        weight = torch.ones_like(square) if weight is None else weight
        squares += torch.where(weight > 0, square * weight, 0.0).sum(0)
        count += weight.sum(0)
    tiny = torch.finfo(squares.dtype).tiny
    before = None if posterior.info is None else posterior.info.noise_scale
    before = (head.noise_scale if before is None else before).to(squares)
    return likeliest_noise((squares / count.clamp(min=tiny)).sqrt(), count, before)


def _temperature(
    head: Head, posterior: Posterior, examples: Sequence[tuple[Tensor, Targets]]
) -> Tensor:
    ones = posterior.mean.new_ones(head.tasks)
    edge = math.log(_RANGE) * ones
    total = sum(len(features) for features, _ in examples)
    found: Tensor | None = None
    for every in sorted({1, *(max(1, total // few) for few in _FEW)}, reverse=True):
        rows = slice(None, None, every)
        some = [(features[rows], targets.examples(rows)) for features, targets in examples]
        density = _log_density(head, posterior, some)
        found = None if found is None else climb(density, found, -edge, edge)
        if found is None:
            found = search(density, -edge, edge, points=_POINTS, steps=_STEPS)
    assert found is not None
    seen = torch.stack([targets.seen() for _, targets in examples]).any(0)
    before = None if posterior.info is None else posterior.info.temperature
    return torch.where(seen, found.exp(), ones if before is None else before)


def _log_density(
    head: Head, posterior: Posterior, examples: Sequence[tuple[Tensor, Targets]]
) -> Callable[[Tensor], Tensor]:
    """Of log T, [trials, tasks], given the examples; up to a constant."""
    gaussian = isinstance(posterior, GaussianFamily)
    if gaussian and head.is_still(OnePredictor, "outputs"):
        score = _by_rule
    elif gaussian and head.is_still(Categorical, "outputs") and head.outputs_per_task == 2:
        score = _of_two_classes
    else:
        score = _by_draws
    scores = [score(head, posterior, features, targets) for features, targets in examples]

    def log_density(log_temperatures: Tensor) -> Tensor:
        total = -0.5 * log_temperatures.square()
        for (_, targets), of in zip(examples, scores, strict=True):
            value = of(log_temperatures.exp())
            weight = targets.factor(value.dtype)
            counted = value if weight is None else torch.where(weight > 0, value * weight, 0.0)
            total += counted.sum(1)
        return total

    return log_density


# Each gives the log predictive density, [trials, B, tasks], for temperatures [trials, tasks].


def _by_rule(
    head: Any, posterior: Any, features: Tensor, targets: Targets
) -> Callable[[Tensor], Tensor]:
    """log E p(y | u / T): u ~ N is worked out once."""
    mean, variance = predictor(head, posterior.with_info(temperature=None), features)

    def at(temperature: Tensor) -> Tensor:
        law: Any = at_temperature(head, posterior.with_info(temperature=temperature))
        m, std = mean / temperature, variance.sqrt() / temperature
        z, p = normal_rule(m, std, _NODES, law.transition(targets.values))
        labels = targets.values.expand_as(z)
        return (p.log() + log_likelihood(law, m + std * z, labels)).logsumexp(0)

    return lambda temperatures: torch.stack([at(temperature) for temperature in temperatures])


def _of_two_classes(
    head: Head, posterior: Any, features: Tensor, targets: Targets
) -> Callable[[Tensor], Tensor]:
    """log E softmax(f / T)_y: the logits' law is worked out once."""
    mean, covariance = joint_outputs(head, posterior.with_info(temperature=None), features)
    labels = targets.values[..., None]

    def at(temperature: Tensor) -> Tensor:
        t = temperature[:, None]
        return two_classes(mean / t, covariance / t[..., None].square()).gather(-1, labels)[..., 0]

    return lambda temperatures: torch.stack([at(temperature) for temperature in temperatures])


def _by_draws(
    head: Head, posterior: Posterior, features: Tensor, targets: Targets
) -> Callable[[Tensor], Tensor]:
    """log of the mean of p(y | f / T) over draws of the weights, the same for every T."""
    plain = posterior.with_info(temperature=None)

    def score(temperatures: Tensor) -> Tensor:
        heads = [at_temperature(head, posterior.with_info(temperature=t)) for t in temperatures]
        total, count = None, 0
        for outputs in drawn_outputs(head, plain, features, SAMPLES, None):
            each = []
            for law, t in zip(heads, temperatures, strict=True):
                log_p = log_likelihood(law, divided(outputs, t), targets.values)
                each.append(log_p.logsumexp(0))
            found = torch.stack(each)
            total = found if total is None else torch.logaddexp(total, found)
            count += len(outputs)
        assert total is not None
        return total - math.log(count)

    return score
