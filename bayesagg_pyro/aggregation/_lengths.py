"""How long the gradients of tasks' mean losses are, as vectors over all features of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients import GradientDistribution


def shares(grad: GradientDistribution) -> Tensor:
    """What a sum over a task's examples is multiplied by, [T]: 1 / n_t, or 0 without a target."""
    scale, one = grad.loss_scale(), torch.ones((), dtype=_dtype(grad), device=grad.like.device)
    share = one if scale is None else scale.to(one).flatten()
    return (share / grad.shape[1]).expand(grad.tasks)


def spreads(grad: GradientDistribution) -> Tensor:
    """tr Cov of each task's gradient, [T], in float64: Σ_b,d Var[g_tbd] / n_t²."""
    total = grad.averaged().to(_dtype(grad)).sum((1, 2)) * grad.labelled().sum(1)
    return total * shares(grad).square()


def lengthening(
    grads: Sequence[GradientDistribution],
    weights: Sequence[Tensor],
    compared: Tensor | None,
    tasks: int,
) -> Tensor:
    """The factor with which these weights give an update as long as equal ones, [].

    Args:
        grads: of each tensor of features.
        weights: of each, [T, 1, 1]; 0 for tasks that are not compared.
        compared: [sum of T, 1, 1], or None for all.
        tasks: how many there are in all.
    """
    spread = [spreads(grad) for grad in grads]
    equal = [torch.full_like(alpha, 1 / tasks) for alpha in weights]
    if compared is not None:
        some = compared.split(list(map(len, weights)))
        equal = [torch.where(own, alpha, 0.0) for own, alpha in zip(some, equal, strict=True)]
    given = _expected_square(grads, weights, spread)
    dtype = weights[0].dtype
    factor = (_expected_square(grads, equal, spread) / given).sqrt()
    return torch.where(given > 0, factor, 1.0).clamp(max=torch.finfo(dtype).max).to(dtype)


def _expected_square(
    grads: Sequence[GradientDistribution], weights: Sequence[Tensor], spread: Sequence[Tensor]
) -> Tensor:
    """E‖Σ_t α_t g_t‖², [], of an update with drawn gradients; posteriors of tasks are independent.

    Gradients by different tensors of features are orthogonal.

    Args:
        grads: of one or several tensors of features.
        weights: α of each, [T, 1, 1].
        spread: `spreads` of each.
    """
    total = spread[0].new_zeros(())
    for grad, alpha, own in zip(grads, weights, spread, strict=True):
        mean = torch.linalg.vector_norm(grad.combined(alpha), dtype=own.dtype) / grad.shape[1]
        total = total + mean.square() + (alpha.flatten().to(own.dtype).square() * own).sum()
    return total


def _dtype(grad: GradientDistribution) -> torch.dtype:
    return linalg.head_dtype(grad.like.device)
