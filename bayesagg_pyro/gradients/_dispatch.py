"""Choose how moments are found by the types of head and posterior, as torch's `kl` does."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import UnsupportedError
from bayesagg_pyro.gradients._cat import weighted
from bayesagg_pyro.gradients._conditional import Conditional
from bayesagg_pyro.gradients._distribution import GradientDistribution, certain
from bayesagg_pyro.gradients._estimator import Estimator, Exact
from bayesagg_pyro.gradients._lazy import Certain
from bayesagg_pyro.gradients._monte_carlo import AtPoint, MonteCarlo
from bayesagg_pyro.gradients._predictor import has_one_predictor, is_softmax
from bayesagg_pyro.gradients._quadrature import Quadrature
from bayesagg_pyro.gradients._registry import registered
from bayesagg_pyro.gradients._samples import are_linear, factors_pay, output_slopes
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Point, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets, Targets

_QUADRATURE = Quadrature()


def distribution(
    head: Head,
    posterior: Posterior | None,
    features: Tensor,
    targets: RawTargets,
    *,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
    average: bool = False,
) -> GradientDistribution:
    """The distribution of the gradient of `head.loss` with respect to the features.

    Args:
        head: the head.
        posterior: over its weights; None for the gradient at the head's own weights, which has no
            variance (`estimator.mean_needs_posterior` is False).
        features: [B, d]; not differentiated through.
        targets: [B, tasks], or (values, mask).
        estimator: how; None takes the most exact way there is: a registered formula, quadrature
            for one linear predictor, conditional samples for softmax, else Monte Carlo.
        generator: randomness for estimators that sample and have no generator of their own.
        average: whether the variance may be that of the average example, the same for all, where
            that costs less (`Estimator.averaged`). `Conditional` takes it from `average_rows` of
            them drawn at random, whose number divides its squared error (`moment_error`). Means
            are each example's own.

    Returns:
        Moments [tasks, B, d] in the features' dtype; in float64 where examples are weighted.

    Raises:
        ShapeError, DtypeError, NonFiniteError: for bad features or targets, or a posterior over
            the weights of another head.
        UnsupportedError: for no posterior, where the estimator needs one.
    """
    if not isinstance(targets, Parsed):  # parsed targets come with checked features
        head.check_features(features)
    observed = head.parse_targets(targets, len(features))
    features = features.detach()
    # Moments stay exact under autocast.
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        if posterior is None:
            if estimator is None or estimator.mean_needs_posterior:
                raise UnsupportedError(
                    "gradients without a posterior are those at the head's own weights: give "
                    f'estimator=gradients.PlugIn(at="weights"), not {estimator!r}'
                )
            grad = at_weights(head, features, observed, average=average)
        else:
            head.check_weights(posterior, "posterior")
            estimator = estimator or default_estimator(head, posterior)
            given = head, posterior, features, observed, generator
            if average and (found := estimator.averaged(*given)) is not None:
                return found
            grad = estimator.estimate(*given)
    return grad if observed.weight is None else weighted(grad, observed.weight)


def at_weights(
    head: Head, features: Tensor, targets: Targets, *, average: bool = False
) -> GradientDistribution:
    """The gradient at the head's own weights; of many examples by factors, if its average will do.

    Args:
        head: the head.
        features: [B, d].
        targets: [B, tasks].
        average: whether moments are best left to be made when somebody asks for them.
    """
    weight = head.point().detach().to(linalg.head_dtype(features.device))
    lazy = average and head.embedding is None and not torch.is_inference_mode_enabled()
    if not (lazy and factors_pay(head, features, targets) and are_linear(head)):
        return certain(head, weight, features, targets)
    (slope,) = output_slopes(head, weight[None], features, targets)
    rows = weight.unflatten(-1, (head.outputs_per_task, -1))[..., : head.in_features]
    return Certain.of(
        partial(certain, head, weight, features, targets),
        slope=slope.to(features.dtype),
        weight=rows.to(features.dtype),
        observed=None if targets.mask is None else targets.mask.mT,
        _like=features.new_empty(0),
        shape=torch.Size([head.tasks, *features.shape]),
    )


def default_estimator(head: Head, posterior: Posterior) -> Estimator:
    """A registered formula; else quadrature or conditional samples; else plain Monte Carlo."""
    if registered(head, posterior) is not None:
        return Exact()
    if isinstance(posterior, Point):
        return AtPoint()
    if isinstance(posterior, GaussianFamily):
        if has_one_predictor(head):
            return _QUADRATURE
        if is_softmax(head):
            return _QUADRATURE if head.classes == 2 else Conditional()
    return MonteCarlo()
