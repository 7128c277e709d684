"""Gradients of each task's loss, as rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


def representation_gradients(losses: Tensor, features: Tensor, *, at_once: bool = True) -> Tensor:
    """∂ℓ_k/∂H for all tasks, ``[K, B, d]``.

    Args:
        losses: ``[K]``, on a graph that begins at ``features`` and is kept.
        features: ``[B, d]``, a leaf.
        at_once: Where only the heads lie between the two, one batched pass costs little more than
            one task's. Layers that cannot be batched take one pass for each.
    """
    if not at_once:
        return torch.stack(
            [
                torch.autograd.grad(loss, features, retain_graph=True, materialize_grads=True)[0]
                for loss in losses
            ]
        )
    (rows,) = torch.autograd.grad(
        losses,
        features,
        torch.eye(len(losses), dtype=losses.dtype, device=losses.device),
        retain_graph=True,
        is_grads_batched=True,
    )
    return rows


def parameter_gradients(features: Tensor, rows: Tensor, parameters: Sequence[Parameter]) -> Tensor:
    """∂ℓ_k/∂θ for all tasks, ``[K, n]``: one backward pass through the backbone for each.

    Args:
        features: ``[B, d]``, on the backbone's graph, which is freed.
        rows: ``[K, B, d]``, the gradients with respect to the features.
        parameters: θ, of ``n`` entries in all.
    """
    size = sum(parameter.numel() for parameter in parameters)
    matrix = rows.new_empty(len(rows), size)
    for task, row in enumerate(rows):
        grads = torch.autograd.grad(
            features,
            list(parameters),
            row.to(features.dtype),
            retain_graph=task + 1 < len(rows),
            materialize_grads=True,
        )
        torch.cat([grad.reshape(-1) for grad in grads], out=matrix[task])
    return matrix


def add_to_grad(parameters: Sequence[Parameter], direction: Tensor) -> None:
    """Add a flat direction, ``[n]``, to ``.grad``."""
    begin = 0
    for parameter in parameters:
        part = direction[begin : begin + parameter.numel()].view_as(parameter).to(parameter.dtype)
        begin += parameter.numel()
        if parameter.grad is None:
            parameter.grad = part.clone()
        else:
            parameter.grad += part
