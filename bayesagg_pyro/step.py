"""What one step of the engine did."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from bayesagg_pyro.aggregation import Aggregated
from bayesagg_pyro.gradients import GradientDistribution

__all__ = ["StepInfo"]


@dataclass(frozen=True)
class StepInfo:
    """What the last `backward` did. Tensors stay on the device: reading one may synchronise.

    Attributes:
        bayesian: False in the warm-up, whose update is the gradient of the summed losses.
        losses: {name: [tasks]}, as returned by `backward`.
        weights: [tasks], mean weight α of each task over examples and dimensions, heads in order;
            None in the warm-up and for methods without weights.
        effective_tasks: [], mean of (Σα)² / Σα²; None as above.
        jitter: {name: [tasks or 1]}, relative jitter that the posteriors took (0: none).
        condition: {name: [tasks or 1]}, lower bounds on the condition of their precisions.
        scale: factor between the aggregated direction and the update of the features' gradient,
            before the division by the batch size.
        gradients: the joint gradient distribution, and
        aggregated: the direction with all its weights, if `keep_gradients` was set; else None.
    """

    bayesian: bool
    losses: dict[str, Tensor]
    weights: Tensor | None = None
    effective_tasks: Tensor | None = None
    jitter: dict[str, Tensor] = field(default_factory=dict)
    condition: dict[str, Tensor] = field(default_factory=dict)
    scale: float = 1.0
    gradients: GradientDistribution | None = None
    aggregated: Aggregated | None = None
