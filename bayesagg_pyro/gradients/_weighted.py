"""Gradients of examples that count more or less than once."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients._distribution import GradientDistribution, mapped

__all__ = ["weighted"]


def weighted(grad: GradientDistribution, weight: Tensor) -> GradientDistribution:
    """The distribution of each example's gradient times its weight, [B, tasks].

    A weight of 0 is no certainty about a gradient of 0: it says as little as a missing target, and
    counts as an example of its task all the same. In float64, where squares of weights neither
    overflow nor vanish, which would read as certainty.
    """
    factor = weight.mT[..., None].to(linalg.head_dtype(weight.device))
    counted = weight.mT > 0
    scale = grad.loss_scale()

    def times(moment: Tensor, factor: Tensor) -> Tensor:
        # What does not count may overflow, and 0 · ∞ would be no number.
        seen = counted.reshape(*counted.shape, *[1] * (factor.ndim - 2))
        return torch.where(seen, moment * factor, 0.0)

    def squared(parts: list[Tensor]) -> Tensor:
        square = factor.square()
        return times(parts[0], square if parts[0].ndim == 3 else square[..., None])

    return mapped(
        [grad],
        lambda parts: times(parts[0], factor),
        squared,
        observed=counted if grad.observed is None else grad.observed & counted,
        batch_loss_scale=grad.mean.new_ones(grad.tasks, 1, 1) if scale is None else scale,
    )
