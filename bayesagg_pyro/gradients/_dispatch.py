"""Choose how moments are found by the types of head and posterior, as torch's `kl` does."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import DtypeError, UnsupportedError
from bayesagg_pyro.gradients._conditional import Conditional
from bayesagg_pyro.gradients._derived import weighted
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._estimator import Estimator, Exact
from bayesagg_pyro.gradients._monte_carlo import AtPoint, MonteCarlo
from bayesagg_pyro.gradients._predictor import has_one_predictor, is_softmax
from bayesagg_pyro.gradients._quadrature import Quadrature
from bayesagg_pyro.gradients._registry import registered
from bayesagg_pyro.gradients._samples import at_weights
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Point, Posterior
from bayesagg_pyro.targets import Parsed, RawTargets

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
            the weights of another head; DtypeError also for what an estimator of yours returns.
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
            return at_weights(head, features, observed, average=average)
        head.check_weights(posterior, "posterior")
        estimator = estimator or default_estimator(head, posterior)
        given = head, posterior, features, observed, generator
        if average and (found := estimator.averaged(*given)) is not None:
            return found
        grad = estimator.estimate(*given)
        if not isinstance(grad, GradientDistribution):
            raise DtypeError.returned(estimator, "estimate", grad, "a GradientDistribution")
    return grad if observed.weight is None else weighted(grad, observed.weight)


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
