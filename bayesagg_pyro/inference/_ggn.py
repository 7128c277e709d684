"""Quadratic expansion of a head's negative log-likelihood: value, gradient and GGN curvature.

For linear outputs the generalised Gauss-Newton matrix Σ J_iᵀ H_i J_i is the Hessian; H_i is the
curvature of −log p(y | f) in the outputs f (paper, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.heads import Categorical, Head, Heteroscedastic, OnePredictor
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.inference._curvature import (
    Curvature,
    Dense,
    Diagonal,
    Gram,
    Kronecker,
    Structure,
    formed,
)
from bayesagg_pyro.targets import Targets

__all__ = ["Chunk", "Expansion", "expand", "value"]


class Chunk(NamedTuple):
    """Some examples in the precision of head algebra.

    Attributes:
        design: [B, D]; the features, [B, d], for heads that `_nonlinear` expands.
        targets: [B, tasks].
    """

    design: Tensor
    targets: Targets


class Expansion(NamedTuple):
    """Σ −log p around a point: value + gradientᵀ Δw + ½ Δwᵀ curvature Δw, for each task.

    Attributes:
        value: [tasks].
        gradient: [tasks, P].
        curvature: at least positive semi-definite.
    """

    value: Tensor
    gradient: Tensor
    curvature: Curvature

    def __add__(self, other: tuple[object, ...]) -> Expansion:
        assert isinstance(other, Expansion)
        mine, theirs = formed(self.curvature), formed(other.curvature)
        curvature: Curvature = mine + theirs  # type: ignore[operator]
        return Expansion(self.value + other.value, self.gradient + other.gradient, curvature)


def expand(
    head: Head,
    chunks: Iterable[Chunk],
    point: Tensor,
    structure: Structure,
    *,
    separate_bias: bool = False,
) -> Expansion:
    """Expansion at `point`, [tasks, P], summed over chunks of examples."""

    def part(chunk: Chunk) -> Expansion:
        if isinstance(head, OnePredictor):
            return _expand_predictor(head, chunk, point, structure)
        if isinstance(head, Heteroscedastic):
            return _expand_heteroscedastic(head, chunk, point, structure)
        return _expand_categorical(head, chunk, point, structure, separate_bias)

    parts = (part(chunk) for chunk in chunks)
    return reduce(lambda total, part: total + part, parts)


def value(head: Head, chunks: Iterable[Chunk], point: Tensor) -> Tensor:
    """Σ −log p at `point` over the observed examples, [tasks]."""
    return reduce(
        lambda total, part: total + part, (_value(head, chunk, point) for chunk in chunks)
    )


def _outputs(head: Head, design: Tensor, point: Tensor) -> Tensor:
    """Outputs at weights of tasks; [B, tasks], or [B, tasks, C] where a task has several."""
    if head.outputs_per_task == 1:
        return design @ point.mT
    return torch.einsum("bd,tcd->btc", design, point.unflatten(-1, (head.outputs_per_task, -1)))


def _value(head: Head, chunk: Chunk, point: Tensor) -> Tensor:
    outputs = _outputs(head, chunk.design, point)
    return _nll(head, chunk, head.counted(outputs, chunk.targets))


def _nll(head: Head, chunk: Chunk, outputs: Tensor) -> Tensor:
    """Σ −log p over the examples for outputs as `_outputs` gives them, [tasks]."""
    if isinstance(head, Categorical) and head.tasks == 1:
        outputs = outputs[:, 0]
    nll = head.negative_log_prob(outputs, like(chunk.targets.values, outputs))
    factor = chunk.targets.factor(nll.dtype)
    return (nll if factor is None else nll * factor).sum(0)


def _expand_predictor(
    head: OnePredictor, chunk: Chunk, point: Tensor, structure: Structure
) -> Expansion:
    design, targets = chunk
    outputs = targets.counted(_outputs(head, design, point))
    slope, curvature = head.nll_derivatives(outputs, like(targets.values, outputs))
    factor = targets.factor(slope.dtype)
    if factor is not None:
        slope, curvature = slope * factor, curvature * factor
    matrix: Curvature = (
        Gram(design, curvature) if structure == "full" else Diagonal(curvature.mT @ design.square())
    )
    return Expansion(_nll(head, chunk, outputs), slope.mT @ design, matrix)


def _expand_heteroscedastic(
    head: Heteroscedastic, chunk: Chunk, point: Tensor, structure: Structure
) -> Expansion:
    """Fisher's information is diagonal in the outputs (f, s): one block for the weights of each."""
    design, targets = chunk
    outputs = head.counted(_outputs(head, design, point), targets)
    slope, fisher = head.nll_derivatives(outputs, targets.values.to(outputs.dtype))
    factor = targets.factor(slope.dtype)
    if factor is not None:
        slope, fisher = slope * factor[..., None], fisher * factor[..., None]
    gradient = torch.einsum("btc,bd->tcd", slope, design).flatten(1)
    value = _nll(head, chunk, outputs)
    if structure == "diag":
        diagonal = torch.einsum("btc,bd->tcd", fisher, design.square()).flatten(1)
        return Expansion(value, gradient, Diagonal(diagonal))
    tasks, size = head.tasks, design.shape[-1]
    matrix = design.new_zeros(tasks, 2, size, 2, size)
    blocks = linalg.gram(design, fisher.flatten(1)).unflatten(0, (tasks, 2))
    matrix.diagonal(dim1=1, dim2=3).copy_(blocks.permute(0, 2, 3, 1))
    dense = Dense(matrix.reshape(tasks, 2 * size, 2 * size))
    return Expansion(value, gradient, dense)


def _expand_categorical(
    head: Head, chunk: Chunk, point: Tensor, structure: Structure, separate_bias: bool
) -> Expansion:
    assert isinstance(head, Categorical)
    design, targets = chunk
    p = _outputs(head, design, point).softmax(-1)  # [B, tasks, C]
    labels = torch.nn.functional.one_hot(targets.values, head.classes)
    factor = targets.factor(p.dtype)
    weight = head.target_weight(targets.values)
    if weight is not None:
        factor = weight.to(p.dtype) if factor is None else factor * weight
    slope = p - labels
    weighted = p if factor is None else p * factor[..., None]
    if factor is not None:
        slope = slope * factor[..., None]
    gradient = torch.einsum("btc,bd->tcd", slope, design).flatten(1)
    return Expansion(
        _value(head, chunk, point),
        gradient,
        _softmax_curvature(head, chunk, p, weighted, structure, separate_bias),
    )


def _softmax_curvature(
    head: Categorical,
    chunk: Chunk,
    p: Tensor,
    weighted: Tensor,
    structure: Structure,
    separate_bias: bool,
) -> Curvature:
    """Σ ω (diag(p) − p pᵀ) ⊗ h hᵀ; `weighted` is ω p."""
    design, targets = chunk
    if structure == "diag":
        return Diagonal(torch.einsum("btc,bd->tcd", weighted * (1 - p), design.square()).flatten(1))
    if structure == "kron":
        outputs = torch.diag_embed(weighted.sum(0)) - torch.einsum("btc,bte->tce", weighted, p)
        mask = None if targets.mask is None else targets.mask.to(design.dtype)
        inputs = linalg.gram(design, mask)
        if separate_bias and head.bias:
            inputs = inputs.clone()
            inputs[..., -1, :-1] = 0
            inputs[..., :-1, -1] = 0
        return Kronecker(outputs, inputs, targets.counts().to(design.dtype))
    tasks, classes, size = head.tasks, head.classes, design.shape[-1]
    # diag(p) part: one Gram matrix per class; p pᵀ part: one product of [B, C·D] matrices.
    matrix = torch.zeros(
        tasks, classes, size, classes, size, dtype=design.dtype, device=design.device
    )
    own = linalg.gram(design, weighted.flatten(1)).unflatten(0, (tasks, classes))
    matrix.diagonal(dim1=1, dim2=3).copy_(own.permute(0, 2, 3, 1))
    left = torch.einsum("btc,bd->tbcd", weighted, design).flatten(2)
    right = torch.einsum("btc,bd->tbcd", p, design).flatten(2)
    flat = matrix.reshape(tasks, classes * size, classes * size)
    return Dense(flat.baddbmm(left.mT, right, alpha=-1))
