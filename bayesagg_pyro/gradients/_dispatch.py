"""Choose how moments are found by the types of head and posterior, as torch's `kl` does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients._conditional import Conditional
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._estimator import Estimator, Exact
from bayesagg_pyro.gradients._monte_carlo import MonteCarlo
from bayesagg_pyro.gradients._point import AtPoint
from bayesagg_pyro.gradients._quadrature import Quadrature
from bayesagg_pyro.gradients._registry import registered
from bayesagg_pyro.heads import Categorical, Head, OnePredictor
from bayesagg_pyro.posteriors import GaussianFamily, Point, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets

__all__ = ["default_estimator", "distribution"]


def distribution(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: RawTargets,
    *,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> GradientDistribution:
    """The distribution of the gradient of `head.loss` with respect to the features.

    Args:
        head: the head.
        posterior: over its weights.
        features: [B, d]; not differentiated through.
        targets: [B, tasks], or (values, mask).
        estimator: how; None takes the most exact way there is: a registered formula, quadrature
            for one linear predictor, conditional samples for softmax, else Monte Carlo.
        generator: randomness for estimators that sample and have no generator of their own.

    Returns:
        Moments [tasks, B, d] in the features' dtype; in float64 where examples are weighted.

    Raises:
        ShapeError, DtypeError, NonFiniteError: for bad features or targets, or a posterior over
            the weights of another head.
    """
    if not isinstance(targets, Parsed):  # parsed targets come with checked features
        head.check_features(features)
    observed = head.parse_targets(targets, len(features))
    head.check_weights(posterior, "posterior")
    features = features.detach()
    estimator = estimator or default_estimator(head, posterior)
    # Moments stay exact under autocast.
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        grad = estimator.estimate(head, posterior, features, observed, generator)
    return grad if observed.weight is None else _weighted(grad, observed.weight)


def default_estimator(head: Head, posterior: Posterior) -> Estimator:
    """A registered formula; else quadrature or conditional samples; else plain Monte Carlo."""
    if registered(head, posterior) is not None:
        return Exact()
    if isinstance(posterior, Point):
        return AtPoint()
    if isinstance(posterior, GaussianFamily):
        if head.is_still(OnePredictor, "outputs", "design", "pointwise"):
            return Quadrature()
        if head.is_still(Categorical) and head.embedding is None:
            assert isinstance(head, Categorical)
            return Quadrature() if head.classes == 2 else Conditional()
    return MonteCarlo()


def _weighted(grad: GradientDistribution, weight: Tensor) -> GradientDistribution:
    """The distribution of each example's gradient times its weight, [B, tasks].

    A weight of 0 is no certainty about a gradient of 0: it says as little as a missing target, and
    counts as an example of its task all the same. In float64, where squares of weights neither
    overflow nor vanish, which would read as certainty.
    """
    factor = weight.mT[..., None].to(linalg.head_dtype(weight.device))
    covariance, sampler, error = grad.covariance, grad.sampler, grad.error
    counted = weight.mT > 0
    scale = grad.loss_scale()

    def times(moment: Tensor, factor: Tensor) -> Tensor:
        # What does not count may overflow, and 0 · ∞ would be no number.
        seen = counted.reshape(*counted.shape, *[1] * (factor.ndim - 2))
        return torch.where(seen, moment * factor, 0.0)

    square = factor.square()
    return replace(
        grad,
        observed=counted if grad.observed is None else grad.observed & counted,
        batch_loss_scale=grad.mean.new_ones(grad.tasks, 1, 1) if scale is None else scale,
        mean=times(grad.mean, factor),
        variance=times(grad.variance, square),
        covariance=covariance and (lambda: times(covariance(), square[..., None])),
        sampler=sampler and (lambda count, generator: times(sampler(count, generator), factor)),
        error=error
        and (lambda: MomentError(times(error().mean, factor), times(error().variance, square))),
    )
