"""Gaussian heads in closed form: N(hᵀm, hᵀSh + τ²), or Student's t where τ is integrated out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.heads._linear import following
from bayesagg_pyro.heads._predictive import predictive_of
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, NormalInverseGamma, Posterior
from bayesagg_pyro.predictive._laws import NormalPredictive, StudentTPredictive
from bayesagg_pyro.predictive._mixture import MixtureOfDraws, SampledPredictive
from bayesagg_pyro.predictive._outputs import SAMPLES, drawn_outputs
from bayesagg_pyro.predictive._predict import LIMIT, draws_until, general

_CLOSED = (GaussianFamily, NormalInverseGamma)


@predictive_of.register
def of_gaussian(head: Gaussian, features: Tensor, posterior: Any, **options: Any) -> Any:
    """Exact where the head's model is still its own; else as of other heads.

    Raises:
        SettingError: for a posterior with integrated noise and a head of another model.
    """
    still = head.is_still(Gaussian, "outputs", "likelihood")
    integrated = isinstance(posterior, NormalInverseGamma)
    if integrated and not still:
        raise SettingError(
            f"head {head.site!r}: {head.changed(Gaussian, 'outputs', 'likelihood')}, in whose "
            "model alone the noise is integrated out; use a posterior of another scheme"
        )
    method = options.get("method", "auto")
    if method in ("auto", "quadrature") and still and isinstance(posterior, _CLOSED):
        return _exact(head, features, posterior).of(f"head {head.site!r}")
    known = still and (integrated or _found(head, posterior) is not None)
    if method in ("auto", "samples") and known:
        samples = options.get("samples") or SAMPLES
        return draws_until(
            options.get("tolerance"),
            lambda count: _by_samples(head, features, posterior, count, options.get("generator")),
            samples,
            samples if isinstance(posterior, Empirical) else LIMIT,
            head.site,
        )
    return general(head, features, posterior, **options)


def _exact(
    head: Gaussian, features: Tensor, posterior: GaussianFamily | NormalInverseGamma
) -> NormalPredictive | StudentTPredictive:
    if isinstance(posterior, NormalInverseGamma):
        mean, spread = head.predictor_moments(features, posterior.unit)  # for τ² = 1
        a, b = posterior.shape_parameter, posterior.rate
        scale = (b / a * (1 + spread)).sqrt()
        return StudentTPredictive(2 * a, mean, scale, validate_args=False)
    mean, epistemic = head.predictor_moments(features, posterior)
    epistemic, noise = in_units_of_noise(head, posterior, epistemic)
    return NormalPredictive(mean, (epistemic + noise).sqrt(), validate_args=False)


def _by_samples(
    head: Gaussian,
    features: Tensor,
    posterior: Any,
    samples: int,
    generator: torch.Generator | None,
) -> SampledPredictive | MixtureOfDraws:
    """A mixture over draws of weights that are in units of a noise that predictions know."""
    if generator is None:
        generator = torch.Generator(features.device).manual_seed(0)
    integrated = isinstance(posterior, NormalInverseGamma)
    unit = posterior.unit if integrated else posterior
    drawn = torch.cat(list(drawn_outputs(head, unit, features, samples, generator)))
    with following(features):
        centre = head(features.to(drawn.dtype), unit.mean.to(drawn))
    noise = _noise_of_draws(head, posterior, samples, generator)
    assert noise is not None
    noise = noise.to(drawn)
    if not integrated:
        outputs = centre + noise / head.noise_scale.to(drawn) * (drawn - centre)
        stored = len(posterior.samples) if isinstance(posterior, Empirical) else None
        return SampledPredictive(head.with_noise_scale(noise), outputs, stored)
    outputs = centre + noise[:, None] * (drawn - centre)
    views = (head.with_noise_scale(scale) for scale in noise)
    return MixtureOfDraws(
        head, [view.likelihood(f) for view, f in zip(views, outputs, strict=True)]
    )


def drawn_weights(
    head: Head, posterior: Posterior, draws: int | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor | None]:
    """Weights of any head as predictions have them, and the noise of a `Gaussian` beside them.

    Args:
        head: the head.
        posterior: over its weights.
        draws: how many; None for all that an `Empirical` posterior has stored.
        generator: randomness.

    Returns:
        [draws, tasks, P]; τ, [tasks] or, where it is drawn with them, [draws, tasks]; None for the
        head's.
    """
    integrated = isinstance(posterior, NormalInverseGamma)
    unit: Any = posterior.unit if integrated else posterior  # type: ignore[attr-defined]
    weight = unit.samples if draws is None else unit.sample((draws,), generator=generator)
    if not isinstance(head, Gaussian) or not head.is_still(Gaussian, "outputs", "likelihood"):
        return weight, None
    noise = _noise_of_draws(head, posterior, len(weight), generator)
    if noise is None:
        return weight, None
    ratio = noise if integrated else noise / head.noise_scale
    return unit.mean + ratio.to(weight)[..., None] * (weight - unit.mean), noise


def _noise_of_draws(
    head: Gaussian, posterior: Any, draws: int, generator: torch.Generator | None
) -> Tensor | None:
    """The τ that draws of the weights go with, see `drawn_weights`."""
    if not isinstance(posterior, NormalInverseGamma):
        return _found(head, posterior)
    shape = posterior.shape_parameter.expand(draws, -1).contiguous()
    return (posterior.rate / torch._standard_gamma(shape, generator=generator)).sqrt()


def _found(head: Gaussian, posterior: Any) -> Tensor | None:
    """The τ that the data chose, [tasks], the unit of the weights; None for the head's."""
    known = head.noise_source == "estimated" and posterior.info is not None
    return posterior.info.noise_scale if known else None


def in_units_of_noise(
    head: Gaussian, posterior: GaussianFamily, epistemic: Tensor
) -> tuple[Tensor, Tensor]:
    """Variance of the predictor, [B, tasks], and τ², [] or [tasks], for what τ is in predictions.

    Where no τ was given, weights and their prior are in units of the one that the data chose.
    """
    noise = head.noise_scale.to(epistemic).square()
    found = _found(head, posterior)
    if found is None:
        return epistemic, noise
    ratio = found.to(epistemic).square() / noise
    return epistemic * ratio, noise * ratio
