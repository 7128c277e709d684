"""p(y | h) of a head under a posterior: the most exact way there is for the two."""

from __future__ import annotations

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
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.predictive import _classes as classes
from bayesagg_pyro.predictive._compound import NormalCompound, PredictorCompound
from bayesagg_pyro.predictive._mixture import SampledPredictive
from bayesagg_pyro.predictive._outputs import (
    drawn_outputs,
    joint_outputs,
    predictor,
)
from bayesagg_pyro.predictive._student_t import student_t

__all__ = ["Method", "predictive"]

Method: TypeAlias = Literal["auto", "quadrature", "probit", "samples"]


def predictive(
    head: Head,
    features: Tensor,
    posterior: Posterior,
    *,
    method: Method = "auto",
    samples: int = 512,
    generator: torch.Generator | None = None,
) -> Any:
    """p(y | h) = ∫ p(y | w, h) dposterior(w); what `head.predictive` returns.

    With a Gaussian posterior: heads of one linear predictor, `Heteroscedastic` and two-class
    `Categorical` by quadrature over the predictors; `Gaussian` in closed form (in the head itself).
    Everything else, and heads whose outputs are no longer linear in the weights, by draws of these:
    all stored ones of an `Empirical` posterior, else `samples` new ones.

    Args:
        head: the head.
        features: [B, d].
        posterior: over its weights.
        method: "auto" as above; "quadrature" or an error; "probit", MacKay's approximation, for
            Bernoulli heads; "samples", a mixture over draws, for all.
        samples: draws of the weights. The error of a probability p is sqrt(p (1 − p) / samples).
        generator: a fresh one with a fixed seed if None, so that calls agree.

    Returns:
        A distribution of batch shape [B, tasks] in the precision of head algebra: Bernoulli or
        Categorical for classes, else a `PredictiveDistribution`, which knows the two parts of its
        variance.

    Raises:
        SettingError: for a method that this head or posterior does not have.
        ShapeError: for a posterior over the weights of another head.
    """
    if method not in ("auto", "quadrature", "probit", "samples"):
        raise SettingError(
            f'method must be "auto", "quadrature", "probit" or "samples", not {method!r}'
        )
    if samples < 1:
        raise SettingError(f"samples must be at least 1, not {samples}")
    head.check_weights(posterior, "posterior")
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
    outputs = drawn_outputs(head, posterior, features, samples, generator)
    if classes.has_classes(head):
        return classes.from_log_probabilities(head, classes.sampled(head, outputs))
    return SampledPredictive(head, torch.cat(list(outputs)))


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
