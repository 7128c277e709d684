"""p(y | h) of a head under a posterior: the most exact way there is for the two."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import (
    Bernoulli,
    Categorical,
    Head,
    Heteroscedastic,
    OnePredictor,
    StudentT,
)
from bayesagg_pyro.heads._predictive import predictive_of
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Posterior
from bayesagg_pyro.predictive import _classes as classes
from bayesagg_pyro.predictive._compound import NormalCompound, PredictorCompound
from bayesagg_pyro.predictive._mixture import SampledPredictive, student_t
from bayesagg_pyro.predictive._outputs import (
    SAMPLES,
    at_temperature,
    drawn_outputs,
    joint_outputs,
    predictor,
)

#: Draws at most, where a tolerance asks for more.
LIMIT = 2**17

Method: TypeAlias = Literal["auto", "quadrature", "probit", "samples"]


def predictive(head: Head, features: Tensor, posterior: Posterior, **options: Any) -> Any:
    """p(y | h) = ∫ p(y | w, h) dposterior(w): `head.predictive(features, posterior, **options)`."""
    return head.predictive(features, posterior, **options)


@predictive_of.register
def general(
    head: Head,
    features: Tensor,
    posterior: Posterior,
    *,
    method: Method = "auto",
    samples: int | None = None,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Predict by quadrature where the head's type has a rule, else by draws of the weights."""
    samples = SAMPLES if samples is None else samples
    if method not in ("auto", "quadrature", "probit", "samples"):
        raise SettingError(
            f'method must be "auto", "quadrature", "probit" or "samples", not {method!r}'
        )
    head = at_temperature(head, posterior)
    if method == "probit":
        return _probit(head, features, posterior)
    if method != "samples" and isinstance(posterior, GaussianFamily):
        found = _by_quadrature(head, features, posterior)
        if found is not None:
            return found.of(f"head {head.site!r}")
    if method == "quadrature":
        raise SettingError(
            f"head {head.site!r}: there is no quadrature for {type(head).__name__} heads with "
            f'{type(posterior).__name__} posteriors; use method="auto" or "samples"'
        )
    return draws_until(
        tolerance,
        lambda count: _by_samples(head, features, posterior, count, generator),
        samples,
        samples if isinstance(posterior, Empirical) else LIMIT,
        head.site,
    )


def draws_until(
    tolerance: float | None, make: Callable[[int], Any], samples: int, limit: int, site: str
) -> Any:
    """Double the draws behind a predictive distribution until its error is within the tolerance.

    Args:
        tolerance: as for `Head.predictive`; None tries once.
        make: the distribution of that many draws, with a `standard_error`.
        samples: to begin with.
        limit: where to stop, with a warning.
        site: the head's name, for the warning.
    """
    found = make(samples)
    while tolerance is not None and not (error := _largest_error(found)) <= tolerance:
        if samples >= limit or math.isnan(error):
            warnings.warn(
                f"head {site!r}: the predictive distribution has a sampling error of up to "
                f"{error:.2g}, more than the tolerance of {tolerance:.2g}; draw more weights",
                RuntimeWarning,
                stacklevel=3,
            )
            break
        samples = min(2 * samples, limit)
        found = make(samples)
    return found


def _by_samples(
    head: Head,
    features: Tensor,
    posterior: Posterior,
    samples: int,
    generator: torch.Generator | None,
) -> Any:
    """A mixture over draws, which knows its sampling error."""
    outputs = drawn_outputs(head, posterior, features, samples, generator)
    stored = len(posterior.samples) if isinstance(posterior, Empirical) else None
    if not classes.has_classes(head):
        return SampledPredictive(head, torch.cat(list(outputs)), stored)
    log_p, error = classes.sampled(head, outputs, stored)
    found: Any = classes.from_log_probabilities(head, log_p)
    found.standard_error = error[..., 1] if head.target_kind == "binary" else error
    return found


def _largest_error(found: Any) -> float:
    """Sampling error of a probability, or of a mean in standard deviations; NaN without a mean."""
    error = found.standard_error
    if not isinstance(found, torch.distributions.Bernoulli | torch.distributions.Categorical):
        variance = found.variance
        variance = torch.where(variance.isfinite(), variance, found.epistemic_variance)
        error = error / variance.sqrt().clamp(min=torch.finfo(error.dtype).tiny)
    return float(error.max())


def _by_quadrature(head: Head, features: Tensor, posterior: GaussianFamily) -> Any:
    """The predictive distribution, or None where there is no rule."""
    if isinstance(head, OnePredictor) and head.is_still(OnePredictor, "outputs"):
        mean, variance = predictor(head, posterior, features)
        if classes.has_classes(head):
            log_p = classes.integrated(head, mean, variance.sqrt())
            return classes.from_log_probabilities(head, log_p)
        if isinstance(head, StudentT) and head.is_still(StudentT, "likelihood"):
            return student_t(head, mean, variance)
        return PredictorCompound(head, mean, variance.sqrt())
    if head.is_still(Heteroscedastic, "outputs", "likelihood"):
        return NormalCompound(*joint_outputs(head, posterior, features))
    softmax = head.is_still(Categorical, "outputs", "likelihood")
    if softmax and head.outputs_per_task == 2:
        log_p = classes.two_classes(*joint_outputs(head, posterior, features))
        return classes.from_log_probabilities(head, log_p)
    return None


def _probit(head: Head, features: Tensor, posterior: Posterior) -> Any:
    logistic = head.is_still(Bernoulli, "outputs", "likelihood")
    if not (logistic and isinstance(head, Bernoulli) and isinstance(posterior, GaussianFamily)):
        raise SettingError(
            f"head {head.site!r}: the probit approximation is for Bernoulli heads with Gaussian "
            f"posteriors, not {type(head).__name__} with {type(posterior).__name__}; use "
            'method="auto"'
        )
    return classes.probit(head, *predictor(head, posterior, features))
