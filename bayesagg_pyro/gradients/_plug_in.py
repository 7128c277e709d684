"""Uncertainty for the weights alone: the gradient at one point, with the posterior's variance."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError, SettingError
from bayesagg_pyro.gradients._dispatch import default_estimator
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._samples import sampled_gradients
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

Point: TypeAlias = Literal["posterior mean", "weights"]


class PlugIn(Estimator):
    """The gradient at a point estimate, with the variance from another estimator.

    E[g] differs from the gradient at E[w] by what the posterior's width adds: 2 S h for a Gaussian
    head, which pulls features towards zero where weights are uncertain. Here that term is dropped
    and the variance kept, so only the weights α know of the uncertainty. Its counterpart is power 0
    in `aggregation.PrecisionWeighted`, where only the mean knows of it.

    The posterior has seen the batch, so its mean leaves smaller residuals than new data would. At
    the head's own weights they are those that its loss has.

    Args:
        estimator: of the variance; None picks it as `gradients.distribution` does.
        at: the "posterior mean", or the head's own "weights": those that it learns by gradient,
            as heads for classes do, and else the mean of the full-data posterior.

    Raises:
        DtypeError: if `estimator` is no Estimator.
        SettingError: for another point.
    """

    def __init__(self, estimator: Estimator | None = None, *, at: Point = "posterior mean") -> None:
        if estimator is not None and not isinstance(estimator, Estimator):
            raise DtypeError(
                f"estimator must be an object from bayesagg_pyro.gradients, not {estimator!r}"
            )
        if at not in get_args(Point):
            raise SettingError(f"at must be 'posterior mean' or 'weights', not {at!r}")
        self.estimator = estimator
        self.at = at
        self.mean_needs_posterior = at != "weights"

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse what the other estimator refuses."""
        if self.estimator is not None:
            self.estimator.check(head, kind)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """The other estimator's distribution, shifted to the gradient at the point."""
        inner = self.estimator or default_estimator(head, posterior)
        grad = inner.estimate(head, posterior, features, targets, generator)
        point = head.point().detach() if self.at == "weights" else posterior.mean
        weight = point.to(linalg.head_dtype(features.device))
        mean = sampled_gradients(head, weight[None], features, targets)[0].to(grad.mean.dtype)
        shift, sampler, error = mean - grad.mean, grad.sampler, grad.error
        return replace(
            grad,
            mean=mean,
            sampler=sampler and (lambda count, generator: sampler(count, generator) + shift),
            error=error and (lambda: MomentError(torch.zeros_like(mean), error().variance)),
        )

    def __repr__(self) -> str:
        inner = [] if self.estimator is None else [repr(self.estimator)]
        at = [] if self.at == "posterior mean" else [f"at={self.at!r}"]
        return f"PlugIn({', '.join(inner + at)})"
