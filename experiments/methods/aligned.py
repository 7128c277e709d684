"""Aligned-MTL: principal components of the gradients, brought to one length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro import linalg
from bayesagg_pyro.aggregation import Combined
from bayesagg_pyro.heads import Head
from experiments.methods.base import Level, MethodOptions
from experiments.methods.gradient_based import GradientBased, GradientOptions
from experiments.settings import require

__all__ = ["Aligned", "AlignedOptions", "AlignedUb", "AlignedUbOptions", "aligned_weights"]

ScaleMode = Literal["min", "median", "rmse"]


@dataclass(frozen=True)
class AlignedOptions(GradientOptions):
    """Options of Aligned-MTL.

    Attributes:
        level: Of the gradients, ``"parameters"`` or ``"representation"``.
        scale_mode: The common length of the components: the ``"min"`` (the method's paper), the
            ``"median"``, or the root mean square (``"rmse"``) of theirs.
        scale_heads: Multiply the losses that heads descend by the tasks' weights as well.
    """

    scale_mode: ScaleMode = "min"
    scale_heads: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.scale_heads, bool),
            "scale_heads",
            self.scale_heads,
            "give true or false",
        )


@dataclass(frozen=True)
class AlignedUbOptions(AlignedOptions):
    """The same, at the level of the representation unless told otherwise.

    Attributes:
        level: As above.
    """

    level: str = "representation"


class Aligned(GradientBased):
    """With G = J Jᵀ = V Λ Vᵀ, weights α = σ V Λ^(−1/2) Vᵀ 1/K, and the update Jᵀ α.

    The update is the mean of the rows of the matrix closest to J whose principal components all
    have the length σ. Directions without any gradient (eigenvalues at rounding level) are dropped.

    Source: Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023,
    algorithm 1; the scale modes are those that the comparison in the BayesAgg paper searched.
    """

    name: ClassVar[str] = "aligned-mtl"
    title: ClassVar[str] = "Aligned-MTL"
    options_type: ClassVar[type[MethodOptions]] = AlignedOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: AlignedOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.scale_mode: ScaleMode = options.scale_mode
        self.scale_heads = options.scale_heads

    def combine(self, matrix: Tensor, present: Tensor | None = None) -> Combined:
        """Jᵀ α and α."""
        if present is None:
            weights = aligned_weights(matrix, self.scale_mode)
        else:
            found = aligned_weights(matrix[present], self.scale_mode)
            weights = found.new_zeros(len(matrix)).masked_scatter(present, found)
        return Combined(weights.to(matrix.dtype) @ matrix, weights)

    def head_weights(self, weights: Tensor) -> Tensor:
        """K α, K the tasks of the batch, when heads are to follow; K keeps the size of a sum."""
        return (weights != 0).sum() * weights if self.scale_heads else torch.ones_like(weights)


class AlignedUb(Aligned):
    """The upper-bound variant: J holds gradients with respect to the representation, [K, B · d]."""

    name: ClassVar[str] = "aligned-mtl-ub"
    title: ClassVar[str] = "Aligned-MTL-UB"
    level: ClassVar[Level] = Level.REPRESENTATION
    levels: ClassVar[tuple[Level, ...]] = (Level.REPRESENTATION, Level.PARAMETERS)
    options_type: ClassVar[type[MethodOptions]] = AlignedUbOptions


def aligned_weights(matrix: Tensor, scale_mode: ScaleMode = "min") -> Tensor:
    """α, ``[K]``, in the precision of head algebra; zeros when every gradient is zero.

    Args:
        matrix: J, ``[K, n]``.
        scale_mode: See :class:`AlignedOptions`.
    """
    exact = matrix.to(linalg.head_dtype(matrix.device))
    values, vectors = torch.linalg.eigh(exact @ exact.T)
    kept = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
    values, vectors = values[kept], vectors[:, kept]
    if not len(values):
        return exact.new_zeros(len(matrix))
    if scale_mode == "min":
        length = values[0]
    elif scale_mode == "median":
        length = values.median()
    else:
        length = values.mean()
    weights: Tensor = (vectors * (length / values).sqrt()) @ vectors.mean(0)
    return weights
