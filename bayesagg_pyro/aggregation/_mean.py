"""Uniform weights: the posterior-mean gradients averaged or summed, variances ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from bayesagg_pyro.aggregation._aggregation import Aggregated, Aggregation, from_weights
from bayesagg_pyro.gradients import GradientDistribution


class Mean(Aggregation):
    """Σ_t μ_t / T: the ablation "posterior mean only" (power 0 of `PrecisionWeighted`)."""

    @property
    def per_example(self) -> bool:
        """True: the direction of an example depends on that example alone."""
        return True

    @property
    def variance_per_example(self) -> bool:
        """False: none is read."""
        return False

    def reads_variance(self, head: str) -> bool:
        """False: of none."""
        return False

    def aggregate(self, grad: GradientDistribution) -> Aggregated:
        """Uniform weights over the tasks."""
        return self._uniform(grad, grad.tasks)

    def aggregate_each(
        self, grads: Sequence[GradientDistribution], heads: Mapping[str, int]
    ) -> list[Aggregated]:
        """Uniform weights over the tasks of all; features may be of any widths."""
        return [self._uniform(grad, sum(heads.values())) for grad in grads]

    def _uniform(self, grad: GradientDistribution, tasks: int) -> Aggregated:
        share = 1 / tasks if self.reduction == "mean" else 1.0
        weights = grad.like.new_full((grad.tasks, 1, 1), share)
        return from_weights(weights, grad)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Sum(Mean):
    """Σ_t μ_t: linear scalarisation with the posterior mean in place of learned weights."""

    reduction: Literal["mean", "sum"] = "sum"
