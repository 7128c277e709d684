"""Gaussian heads in closed form: N(hᵀm, hᵀSh + τ²), or Student's t where τ is integrated out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.heads._predictive import predictive_of
from bayesagg_pyro.posteriors import GaussianFamily, NormalInverseGamma
from bayesagg_pyro.predictive._laws import NormalPredictive, StudentTPredictive
from bayesagg_pyro.predictive._predict import general


@predictive_of.register
def of_gaussian(head: Gaussian, features: Tensor, posterior: Any, **options: Any) -> Any:
    """Exact where the head's model is still its own; else as of other heads.

    Raises:
        SettingError: for a posterior with integrated noise and a head of another model.
    """
    still = head.is_still(Gaussian, "outputs", "likelihood")
    closed = options.get("method", "auto") == "auto" and still
    if isinstance(posterior, NormalInverseGamma) and not still:
        raise SettingError(
            f"head {head.site!r}: {head.changed(Gaussian, 'outputs', 'likelihood')}, in whose "
            "model alone the noise is integrated out; use a posterior of another scheme"
        )
    if isinstance(posterior, NormalInverseGamma) and closed:
        mean, spread = head.predictor_moments(features, posterior.unit)  # for τ² = 1
        a, b = posterior.shape_parameter, posterior.rate
        scale = (b / a * (1 + spread)).sqrt()
        law = StudentTPredictive(2 * a, mean, scale, validate_args=False)
        return law.of(f"head {head.site!r}")
    if not isinstance(posterior, GaussianFamily) or not closed:
        return general(head, features, posterior, **options)
    mean, epistemic = head.predictor_moments(features, posterior)
    epistemic, noise = in_units_of_noise(head, posterior, epistemic)
    law = NormalPredictive(mean, (epistemic + noise).sqrt(), validate_args=False)
    return law.of(f"head {head.site!r}")


def in_units_of_noise(
    head: Gaussian, posterior: GaussianFamily, epistemic: Tensor
) -> tuple[Tensor, Tensor]:
    """Variance of the predictor, [B, tasks], and τ², [] or [tasks], for what τ is in predictions.

    Where no τ was given, weights and their prior are in units of the one that the data chose.
    """
    noise = head.noise_scale.to(epistemic).square()
    found = None if posterior.info is None else posterior.info.noise_scale
    if head.noise_source != "estimated" or found is None:
        return epistemic, noise
    ratio = found.to(epistemic).square() / noise
    return epistemic * ratio, noise * ratio
