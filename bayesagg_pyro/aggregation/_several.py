"""Results for several tensors of features, as one for their joint rows and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.gradients import GradientDistribution

if TYPE_CHECKING:
    from bayesagg_pyro.aggregation._aggregation import Aggregated


def apart(
    found: Aggregated, joint: GradientDistribution, grads: Sequence[GradientDistribution]
) -> list[Aggregated]:
    """The result for joint rows as one for each tensor of features."""
    parts, start, batch = [], 0, joint.mean.shape[1]
    for grad in grads:
        size = grad.mean.shape[1]
        rows = slice(start, start + size)
        start += size
        weights = found.weights
        if weights is not None:
            if weights.shape[1] > 1:
                weights = weights[:, rows]
            weights = torch.cat([weights[joint.groups[name]] for name in grad.groups])
        direction = found.direction[rows, : grad.mean.shape[2]] * (size / batch)
        parts.append(replace(found, direction=direction, weights=weights, observed=grad.observed))
    return parts


def as_joint(
    parts: Sequence[Aggregated], grads: Sequence[GradientDistribution], joint: GradientDistribution
) -> Aggregated:
    """What `aggregate_each` gave, as the result for the joint distribution of `block_diag`.

    Where that is wider than features of some heads, their tasks' mean weights stand there.
    """
    batch, wide = joint.mean.shape[1:]
    direction = torch.cat([_behind(p.direction * (batch / len(p.direction)), wide) for p in parts])
    whole = replace(
        parts[0], direction=direction, weights=None, jitter=None, observed=joint.observed
    )
    found = [part.weights for part in parts if part.weights is not None]
    if len(found) < len(parts):
        return whole
    width = 1 if all(weights.shape[2] == 1 for weights in found) else wide
    filled = direction.new_zeros(joint.tasks, batch, width)
    start = 0
    for weights, part, grad in zip(found, parts, grads, strict=True):
        rows = slice(start, start + len(part.direction))
        start = rows.stop
        if 1 < weights.shape[2] < width:
            mean = weights.mean(2, keepdim=True)
            weights = torch.cat([weights, mean.expand(-1, -1, width - weights.shape[2])], 2)
        for name, own in grad.groups.items():
            filled[joint.groups[name], rows] = weights[own]
    return replace(whole, weights=filled)


def _behind(direction: Tensor, width: int) -> Tensor:
    """[B, d] with zeros behind, [B, width]."""
    return torch.nn.functional.pad(direction, (0, width - direction.shape[1]))
