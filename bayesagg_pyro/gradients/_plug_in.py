"""The ablation "uncertainty only": the posterior's width decides weights, not the gradient."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._dispatch import default_estimator
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._samples import sampled_gradients
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["PlugIn"]


class PlugIn(Estimator):
    """The gradient at the posterior mean, with the variance that another estimator finds.

    E[g] differs from the gradient at E[w] by what the posterior's width adds: 2 S h for a Gaussian
    head, which pulls features towards zero where weights are uncertain. Here that term is dropped
    and the variance kept, so only the weights α know of the uncertainty. Its counterpart is power 0
    in `aggregation.PrecisionWeighted`, where only the mean knows of it.

    Args:
        estimator: of the variance; None picks it as `gradients.distribution` does.

    Raises:
        DtypeError: if `estimator` is no Estimator.
    """

    def __init__(self, estimator: Estimator | None = None) -> None:
        if estimator is not None and not isinstance(estimator, Estimator):
            raise DtypeError(
                f"estimator must be an object from bayesagg_pyro.gradients, not {estimator!r}"
            )
        self.estimator = estimator

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
        """The other estimator's distribution, shifted to the gradient at the posterior mean."""
        inner = self.estimator or default_estimator(head, posterior)
        grad = inner.estimate(head, posterior, features, targets, generator)
        weight = posterior.mean.to(linalg.head_dtype(features.device))
        mean = sampled_gradients(head, weight[None], features, targets)[0].to(grad.mean.dtype)
        shift, sampler, error = mean - grad.mean, grad.sampler, grad.error
        return replace(
            grad,
            mean=mean,
            sampler=sampler and (lambda count, generator: sampler(count, generator) + shift),
            error=error and (lambda: MomentError(torch.zeros_like(mean), error().variance)),
        )

    def __repr__(self) -> str:
        return f"PlugIn({'' if self.estimator is None else self.estimator})"
