"""Quadratic expansion of a head's negative log-likelihood: value, gradient and GGN curvature.

The generalised Gauss-Newton matrix is Σ Jᵀ H J, with J the Jacobian of an example's outputs in the
weights and H the curvature of −log p in the outputs (Schraudolph, 2002,
https://doi.org/10.1162/08997660260028683; paper, section 4.2). It equals the Hessian where outputs
are linear in the weights, and is positive semi-definite always. Heads give H
(`Head.output_curvature`); J is the design where outputs are linear, and differentiated elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import LARGE, fitting, slices
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head, SharedWeights
from bayesagg_pyro.heads._input import like
from bayesagg_pyro.heads._output_curvature import OutputCurvature, semidefinite
from bayesagg_pyro.inference import _jacobian
from bayesagg_pyro.inference._curvature import (
    Curvature,
    Dense,
    Diagonal,
    Gram,
    Hessian,
    Kronecker,
    Structure,
    materialised,
)
from bayesagg_pyro.inference._joint import log_likelihood
from bayesagg_pyro.targets import Targets, alike


class Chunk(NamedTuple):
    """Some examples in the precision of head algebra.

    Attributes:
        design: [B, D] of a head with linear outputs, else the features, [B, d].
        targets: [B, tasks].
        factor: how much each target counts, [B, tasks]; None where each counts once.
        linear: whether the head's outputs are linear in weights of tasks.
    """

    design: Tensor
    targets: Targets
    factor: Tensor | None
    linear: bool

    def examples(self, rows: slice) -> Chunk:
        """Some of them."""
        factor = None if self.factor is None else self.factor[rows]
        return Chunk(self.design[rows], self.targets.examples(rows), factor, self.linear)


class Expansion(NamedTuple):
    """Σ −log p around a point: value + gradientᵀ Δw + ½ Δwᵀ curvature Δw, for each block.

    Attributes:
        value: [blocks].
        gradient: [blocks, P].
        curvature: at least positive semi-definite, but for a Hessian.
        dropped: sizes of the negative curvature in the outputs that was dropped, and of all,
            [2, blocks]; None where a closed form has none.
    """

    value: Tensor
    gradient: Tensor
    curvature: Curvature
    dropped: Tensor | None = None

    def joined(self, other: Expansion) -> Expansion:
        """Of the examples of both."""
        curvature = materialised(self.curvature) + materialised(other.curvature)
        dropped = self.dropped
        if dropped is not None and other.dropped is not None:
            dropped = dropped + other.dropped
        return Expansion(
            self.value + other.value, self.gradient + other.gradient, curvature, dropped
        )


def dropped_share(sizes: Tensor) -> Tensor:
    """What `info.dropped_curvature` tells, [blocks], of `Expansion.dropped`."""
    return sizes[0] / sizes[1].clamp(min=torch.finfo(sizes.dtype).tiny)


def check_structure(head: Head, structure: Structure) -> None:
    """Refuse heads without second-order expansion and structures that do not fit.

    Raises:
        SettingError: naming the head and the remedy.
    """
    allowed: tuple[str, ...] = ("full",) if _without_outputs(head) else ("full", "diag")
    if not isinstance(head, SharedWeights) and not head.is_still(Head, "pointwise"):
        raise SettingError(
            f"head {head.site!r}: {head.changed(Head, 'pointwise')}, past which no curvature in "
            "the outputs is known; override negative_log_prob, or choose a sampling scheme"
        )
    if _linear(head) and head.outputs_per_task > 1:
        allowed = ("full", "kron", "diag")
    if structure not in allowed:
        raise SettingError(
            f"head {head.site!r}: structure must be one of {allowed} for {type(head).__name__} "
            f"heads, not {structure!r}"
        )


def check_tasks(head: Head) -> None:
    """Refuse outputs of a subclass that mix the weights of tasks, and a density without curvature.

    It looks at values, so not per step.

    Raises:
        SettingError: naming the head and the remedy.
    """
    _jacobian.check_curvature(head)
    if head.blocks > 1 and not _linear(head):
        _jacobian.check_tasks(head)


def chunk_of(head: Head, features: Tensor, targets: Targets) -> Chunk:
    """Some examples as the head's expansion takes them, detached and in the precision it has."""
    linear = _linear(head)
    if linear:
        design = head.design_matrix(features)
    else:
        design = features.detach().to(linalg.head_dtype(features.device))
    targets = targets._replace(values=like(targets.values, design))
    return Chunk(design, targets, targets.factor(design.dtype), linear)


def expand(
    head: Head,
    chunks: Iterable[Chunk],
    point: Tensor,
    structure: Structure,
    *,
    separate_bias: bool = False,
) -> Expansion:
    """Σ −log p at `point`, [blocks, P], to second order, summed over chunks of examples."""
    parts: list[Expansion] = []
    for chunk in chunks:
        if chunk.linear:
            parts.append(_linear_ggn(head, chunk, point, structure, separate_bias))
        elif _without_outputs(head):
            parts.append(_hessian(head, chunk, point))
        else:
            each = head.weight_size * head.tasks * _jacobian.outputs_per_task(head)
            rows = slices(len(chunk.design), fitting(each, LARGE))
            pieces = (_ggn(head, chunk.examples(some), point, structure) for some in rows)
            parts.append(reduce(Expansion.joined, pieces))
    return reduce(Expansion.joined, parts)


def value(head: Head, chunks: Iterable[Chunk], point: Tensor) -> Tensor:
    """Σ −log p at `point` over the observed examples, [blocks]."""
    values = []
    for chunk in chunks:
        if chunk.linear:
            values.append(_nll(head, chunk, _outputs(head, chunk, point)))
        else:
            values.append(-log_likelihood(head, point, chunk.design, chunk.targets))
    return reduce(torch.add, values)


def curvature_matvec(
    head: Head, chunks: Iterable[Chunk], point: Tensor
) -> Callable[[Tensor], Tensor]:
    """Products of the GGN of a head with linear outputs with vectors, [tasks, P], without it.

    Args:
        head: the head.
        chunks: of the examples; of a single one the curvature is kept, else made each time.
        point: weights, [tasks, P].
    """

    def made(chunk: Chunk) -> tuple[Tensor, OutputCurvature]:
        return chunk.design, _of_outputs(head, chunk, _outputs(head, chunk, point))[1]

    kept = [made(chunk) for chunk in islice(chunks, 2)]

    def matvec(vectors: Tensor) -> Tensor:
        parts = kept if len(kept) == 1 else map(made, chunks)
        return reduce(torch.add, (_ggn_matvec(*part, vectors) for part in parts))

    return matvec


def _ggn_matvec(design: Tensor, curvature: OutputCurvature, vectors: Tensor) -> Tensor:
    rows = vectors.reshape(-1, design.shape[1])
    outputs = (design @ rows.mT).unflatten(1, (len(vectors), -1))
    slopes = curvature.matvec(outputs).flatten(1)
    return (slopes.mT @ design).reshape(vectors.shape)


def _linear(head: Head) -> bool:
    """Whether outputs are still f = W φ(h), and the weights those of tasks."""
    return not isinstance(head, SharedWeights) and head.is_still(Head, "outputs")


def summed_kind(head: Head, structure: Structure) -> type[Dense | Diagonal | Kronecker]:
    """What the curvature of a head's expansions is kept as over batches."""
    kinds: dict[Structure, type[Dense | Diagonal | Kronecker]] = {
        "full": Hessian if _without_outputs(head) else Dense,
        "diag": Diagonal,
        "kron": Kronecker,
    }
    return kinds[structure]


def _without_outputs(head: Head) -> bool:
    """Whether the likelihood of shared weights is no function of outputs: the Hessian it is."""
    return isinstance(head, SharedWeights) and not head.is_still(Head, "pointwise")


def _outputs(head: Head, chunk: Chunk, point: Tensor) -> Tensor:
    """Linear outputs at weights of tasks, as the head's `forward` gives them."""
    outputs = head.outputs_of(chunk.design, point)
    return outputs if chunk.factor is None else head.counted(outputs, chunk.targets)


def _nll(head: Head, chunk: Chunk, outputs: Tensor) -> Tensor:
    """Σ −log p over the examples at these outputs, [tasks]."""
    nll = head.negative_log_prob(outputs, chunk.targets.values)
    return (nll if chunk.factor is None else nll * chunk.factor).sum(0)


def _linear_ggn(
    head: Head, chunk: Chunk, point: Tensor, structure: Structure, separate_bias: bool
) -> Expansion:
    """The design is the Jacobian of every output in its own weights."""
    design, targets = chunk.design, chunk.targets
    outputs = _outputs(head, chunk, point)
    slope, curvature, dropped = _of_outputs(head, chunk, outputs)
    gradient = (slope.flatten(1).mT @ design).reshape(point.shape)
    matrix: Curvature
    if structure == "diag":
        diagonal = curvature.diagonal().flatten(1).mT @ design.square()
        matrix = Diagonal(diagonal.reshape(point.shape))
    elif structure == "kron":
        factor = chunk.factor  # weights are repetitions: in A and n as in G
        if factor is None:
            count = targets.counts().to(design.dtype)
        else:
            count, factor = factor.sum(0), factor[:, :1] if alike(factor) else factor
        inputs = linalg.gram(design, factor)
        if separate_bias and head.bias:
            inputs = inputs.clone()
            inputs[..., -1, :-1] = 0
            inputs[..., :-1, -1] = 0
        matrix = Kronecker(curvature.total(), inputs, count)
    elif head.outputs_per_task == 1:
        matrix = Gram(design, curvature.diagonal()[..., 0])
    else:
        matrix = Dense(curvature.gram(design))
    return Expansion(_nll(head, chunk, outputs), gradient, matrix, dropped)


def _hessian(head: Head, chunk: Chunk, point: Tensor) -> Expansion:
    matrix, gradient, at = _jacobian.hessian(lambda w: value(head, [chunk], w[None])[0], point[0])
    return Expansion(at[None], gradient[None], Hessian(matrix[None]))


def _ggn(head: Head, chunk: Chunk, point: Tensor, structure: Structure) -> Expansion:
    jacobian, outputs = _jacobian.of_outputs(head, chunk.design, point)
    outputs = head.counted(outputs, chunk.targets)
    slope, curvature, dropped = _of_outputs(head, chunk, outputs)
    curved = curvature.matmul(jacobian)
    if head.blocks == 1:  # every output depends on the same weights
        slope, jacobian, curved = (
            x.flatten(0, 2)[None] for x in (slope[..., None], jacobian, curved)
        )
        dropped = None if dropped is None else dropped.sum(1, keepdim=True)
    else:
        slope, jacobian, curved = (
            x.transpose(0, 1).flatten(1, 2) for x in (slope[..., None], jacobian, curved)
        )
    gradient = (slope.mT @ jacobian)[:, 0]
    if structure == "diag":
        matrix: Curvature = Diagonal((jacobian * curved).sum(1))
    else:
        matrix = Dense(jacobian.mT @ curved)
    return Expansion(value(head, [chunk], point), gradient, matrix, dropped)


def _of_outputs(
    head: Head, chunk: Chunk, outputs: Tensor
) -> tuple[Tensor, OutputCurvature, Tensor | None]:
    """Weighed slope [B, tasks, C] and curvature of −log p in the outputs, and what was dropped."""
    slope, found = head.output_curvature(outputs, chunk.targets.values)
    factor, dropped = chunk.factor, None
    if isinstance(found, OutputCurvature):
        curvature = found
    else:
        curvature, dropped = semidefinite(f"head {head.site!r}", slope, found, factor)
    if factor is None:
        return slope, curvature, dropped
    return slope * factor[..., None], curvature.weighed(factor), dropped
