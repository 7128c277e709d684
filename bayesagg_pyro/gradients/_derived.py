"""Distributions made of others: of more features, of several tensors, of weighted examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import UnsupportedError
from bayesagg_pyro.gradients._distribution import GradientDistribution, mapped


def widened(grad: GradientDistribution, width: int) -> GradientDistribution:
    """Gradients by more features, whose own are 0."""
    more = width - grad.mean.shape[2]
    if not more:
        return grad
    pad = torch.nn.functional.pad
    return mapped(
        [grad],
        lambda parts: pad(parts[0], (0, more)),
        lambda parts: pad(parts[0], (0, more) * (parts[0].ndim - 2)),
    )


def check_widths(widths: Mapping[str, int]) -> None:
    """Refuse features of different widths, {head: d}, where they are to be joined.

    Raises:
        UnsupportedError: with the remedy.
    """
    if len(set(widths.values())) > 1:
        raise UnsupportedError(
            f"features of different widths, {dict(widths)}, have no dimensions in common, which "
            "this aggregation needs: bring them to one width by a layer of the backbone, or take "
            "PrecisionWeighted() with a diagonal covariance"
        )


def block_diag(
    grads: Sequence[GradientDistribution], heads: Mapping[str, int]
) -> GradientDistribution:
    """Gradients in several feature tensors as those in one tensor that stacks their rows.

    A task has no target at the rows that its head does not read.

    Args:
        grads: [tasks, B, d] each, joined by `cat`; d is common.
        heads: {name: tasks} of all heads, in order; a head may be in none of `grads`.

    Raises:
        UnsupportedError: if features differ in width.
    """
    check_widths({name: grad.mean.shape[2] for grad in grads for name in grad.groups})
    groups = {
        name: slice(end - size, end)
        for (name, size), end in zip(heads.items(), accumulate(heads.values()), strict=True)
    }
    batch, tasks = sum(grad.mean.shape[1] for grad in grads), sum(heads.values())
    scale = grads[0].mean.new_zeros(tasks, 1, 1)
    every = torch.arange(tasks, device=scale.device)
    rows = [torch.cat([every[groups[name]] for name in grad.groups]) for grad in grads]

    def joined(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Blocks whose axis of tasks is this one, followed by that of examples."""
        blocks = [
            part.new_zeros(*part.shape[:axis], tasks, *part.shape[axis + 1 :]).index_copy(
                axis, row, part
            )
            for row, part in zip(rows, parts, strict=True)
        ]
        return torch.cat(blocks, axis + 1)

    for row, grad in zip(rows, grads, strict=True):
        own_scale = grad.loss_scale()
        share = batch / grad.mean.shape[1]  # over the rows of all
        scale[row] = share if own_scale is None else own_scale * share
    return mapped(
        grads,
        lambda parts: joined(parts, parts[0].ndim - 3),
        joined,
        observed=joined([grad.labelled() for grad in grads]),
        groups=groups,
        batch_loss_scale=scale,
    )


def weighted(grad: GradientDistribution, weight: Tensor) -> GradientDistribution:
    """The distribution of each example's gradient times its weight, [B, tasks].

    A weight of 0 is no certainty about a gradient of 0: it says as little as a missing target, and
    counts as an example of its task all the same. In float64, where squares of weights neither
    overflow nor vanish, which would read as certainty.
    """
    factor = weight.mT[..., None].to(linalg.head_dtype(weight.device))
    counted = weight.mT > 0
    scale = grad.loss_scale()

    def scaled(moment: Tensor, factor: Tensor) -> Tensor:
        # What does not count may overflow, and 0 · ∞ would be no number.
        seen = counted.reshape(*counted.shape, *[1] * (factor.ndim - 2))
        return torch.where(seen, moment * factor, 0.0)

    def squared(parts: list[Tensor]) -> Tensor:
        square = factor.square()
        return scaled(parts[0], square if parts[0].ndim == 3 else square[..., None])

    return mapped(
        [grad],
        lambda parts: scaled(parts[0], factor),
        squared,
        observed=counted if grad.observed is None else grad.observed & counted,
        batch_loss_scale=grad.mean.new_ones(grad.tasks, 1, 1) if scale is None else scale,
    )
