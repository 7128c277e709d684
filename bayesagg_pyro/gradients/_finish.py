"""The last step of every formula: missing targets, dtype, and ways to ask for more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._samples import gradient_sampler
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["finish"]


def finish(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    mean: Tensor,
    variance: Tensor,
    covariance: Callable[[], Tensor],
    error: Callable[[], MomentError] | None = None,
    certain: bool = False,
) -> GradientDistribution:
    """Moments as a gradient distribution in the features' dtype, 0 where a target is missing.

    Args:
        head: the head.
        posterior: over its weights; serves for samples on request.
        features: [B, d].
        targets: [B, tasks].
        mean: [tasks, B, d].
        variance: [tasks, B, d]; written to.
        covariance: makes the full covariance, [tasks, B, d, d].
        error: estimates the error of mean and variance; None for closed forms, which have none.
        certain: whether a variance of 0 is one; else what is left of it is the smallest number.
    """
    observed = None if targets.mask is None else targets.mask.mT
    dtype = features.dtype
    if not certain:  # what varies at all must not read as certain: squares underflow
        variance = variance.clamp_(min=min(torch.finfo(dtype).tiny, 2**-24))

    def clean(moment: Tensor) -> Tensor:
        if observed is not None:
            seen = observed.reshape(*observed.shape, *[1] * (moment.ndim - 2))
            moment = torch.where(seen, moment, 0.0)
        return moment.to(dtype)

    shape, zero = mean.shape, mean.new_zeros(())  # and not the moments in their full precision

    def stated() -> MomentError:
        none = zero.expand(shape)
        return MomentError(*map(clean, (none, none) if error is None else error()))

    return GradientDistribution(
        clean(mean),
        clean(variance),
        observed=observed,
        covariance=lambda: clean(covariance()),
        sampler=gradient_sampler(head, posterior, features, targets),
        error=stated,
    )
