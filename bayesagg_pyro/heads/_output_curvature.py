"""The curvature of −log p(y | f) in the outputs f of a task: what the GGN needs of a likelihood.

A Gauss-Newton matrix is Σ Jᵀ H J with J the Jacobian of the outputs. What is known of H's shape is
a class here, with the products that Jᵀ H J is made of; nothing else of a head is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import ShapeError


class OutputCurvature(ABC):
    """H ⪰ 0 for each example and task, [B, tasks, C, C] in some form."""

    @abstractmethod
    def weighed(self, factor: Tensor) -> OutputCurvature:
        """Times a weight of each example and task, [B, tasks]."""

    @abstractmethod
    def matmul(self, jacobian: Tensor) -> Tensor:
        """H J for J [B, tasks, C, P]."""

    def matvec(self, vectors: Tensor) -> Tensor:
        """H v for v [B, tasks, C]."""
        return self.matmul(vectors[..., None])[..., 0]

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Of H, [B, tasks, C]."""

    @abstractmethod
    def total(self) -> Tensor:
        """Σ_b H_b, [tasks, C, C]."""

    @abstractmethod
    def gram(self, design: Tensor) -> Tensor:
        """Σ_b H_b ⊗ h_b h_bᵀ for a design [B, D], [tasks, C · D, C · D]."""


@dataclass(frozen=True)
class DiagonalCurvature(OutputCurvature):
    """Outputs that do not interact; the diagonal, [B, tasks, C]."""

    values: Tensor

    def weighed(self, factor: Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(self.values * factor[..., None])

    def matmul(self, jacobian: Tensor) -> Tensor:
        return self.values[..., None] * jacobian

    def diagonal(self) -> Tensor:
        return self.values

    def total(self) -> Tensor:
        return torch.diag_embed(self.values.sum(0))

    def gram(self, design: Tensor) -> Tensor:
        return _block_diagonal(design, self.values)


@dataclass(frozen=True)
class SoftmaxCurvature(OutputCurvature):
    """ω (diag(p) − p pᵀ).

    Attributes:
        p: probabilities, [B, tasks, C].
        weighted: ω p, [B, tasks, C].
    """

    p: Tensor
    weighted: Tensor

    def weighed(self, factor: Tensor) -> SoftmaxCurvature:
        return SoftmaxCurvature(self.p, self.weighted * factor[..., None])

    def matmul(self, jacobian: Tensor) -> Tensor:
        average = torch.einsum("btc,btcp->btp", self.p, jacobian)[..., None, :]
        return self.weighted[..., None] * (jacobian - average)

    def matvec(self, vectors: Tensor) -> Tensor:
        return self.weighted * (vectors - (self.p * vectors).sum(-1, keepdim=True))

    def diagonal(self) -> Tensor:
        return self.weighted * (1 - self.p)

    def total(self) -> Tensor:
        coupled = torch.einsum("btc,bte->tce", self.weighted, self.p)
        return torch.diag_embed(self.weighted.sum(0)) - coupled

    def gram(self, design: Tensor) -> Tensor:
        # p pᵀ part: one product of [B, C · D] matrices.
        left = torch.einsum("btc,bd->tbcd", self.weighted, design).flatten(2)
        right = torch.einsum("btc,bd->tbcd", self.p, design).flatten(2)
        return _block_diagonal(design, self.weighted).baddbmm(left.mT, right, alpha=-1)


@dataclass(frozen=True)
class DenseCurvature(OutputCurvature):
    """Any other, [B, tasks, C, C]."""

    matrix: Tensor

    def weighed(self, factor: Tensor) -> DenseCurvature:
        return DenseCurvature(self.matrix * factor[..., None, None])

    def matmul(self, jacobian: Tensor) -> Tensor:
        return self.matrix @ jacobian

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal(dim1=-2, dim2=-1)

    def total(self) -> Tensor:
        return self.matrix.sum(0)

    def gram(self, design: Tensor) -> Tensor:
        rows = [  # one output at a time: all pairs at once would take C² D B numbers a task
            linalg.gram(design, row.flatten(1)).unflatten(0, row.shape[1:])
            for row in self.matrix.unbind(2)
        ]
        blocks = torch.stack(rows, 1)  # [tasks, C, C, D, D]
        return blocks.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _block_diagonal(design: Tensor, values: Tensor) -> Tensor:
    """Σ_b diag(values_b) ⊗ h_b h_bᵀ, [tasks, C · D, C · D]."""
    tasks, outputs, size = *values.shape[1:], design.shape[-1]
    if outputs == 1:
        return linalg.gram(design, values[..., 0])
    matrix = design.new_zeros(tasks, outputs, size, outputs, size)
    blocks = linalg.gram(design, values.flatten(1)).unflatten(0, (tasks, outputs))
    matrix.diagonal(dim1=1, dim2=3).copy_(blocks.permute(0, 2, 3, 1))
    return matrix.reshape(tasks, outputs * size, outputs * size)


def derivatives(
    nll: Callable[[Tensor], Tensor], outputs: Tensor, tasks: int
) -> tuple[Tensor, Tensor]:
    """First and second derivatives of −log p, [B, tasks], in the outputs of its example and task.

    By automatic differentiation, without a transform of `torch.func`: a likelihood may be any code.

    Args:
        nll: maps outputs to [B, tasks].
        outputs: [B, ...], as the head's `forward` gives them.
        tasks: T.

    Returns:
        [B, tasks, C] and [B, tasks, C, C].
    """
    shape = len(outputs), tasks, -1
    with torch.inference_mode(False), torch.enable_grad():
        leaf = outputs.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(nll(leaf).sum(), leaf, create_graph=True)
        each = slope.reshape(shape)
        columns = [torch.zeros_like(each) for _ in range(each.shape[-1])]
        if each.requires_grad:  # else −log p is linear
            for i, entry in enumerate(each.unbind(-1)):
                found = torch.autograd.grad(entry.sum(), leaf, retain_graph=True, allow_unused=True)
                if found[0] is not None:
                    columns[i] = found[0].reshape(shape)
    matrix = torch.stack(columns, -1).detach()
    return each.detach(), 0.5 * (matrix + matrix.mT)


def semidefinite(
    owner: str, slope: Tensor, found: Tensor, factor: Tensor | None
) -> tuple[OutputCurvature, Tensor]:
    """A curvature without its negative eigenvalues; their sizes and those of all, [2, tasks].

    Args:
        owner: names the head in errors.
        slope: [B, tasks, C].
        found: [B, tasks, C, C], or its diagonal, [B, tasks, C].
        factor: of each example, [B, tasks]; None for 1.

    Raises:
        ShapeError: for other shapes.
    """
    if found.shape == slope.shape:
        values = found
        curvature: OutputCurvature = DiagonalCurvature(values.clamp(min=0))
    elif found.shape == (*slope.shape, slope.shape[-1]):
        values, vectors = torch.linalg.eigh(found)
        positive = (vectors * values.clamp(min=0)[..., None, :]) @ vectors.mT
        rounding = values.abs().amax(-1) * values.shape[-1] * torch.finfo(values.dtype).eps
        values = torch.where(values < -rounding[..., None], values, values.abs())
        curvature = DenseCurvature(
            torch.where((values < 0).any(-1)[..., None, None], positive, found)
        )
    else:
        raise ShapeError(
            f"{owner}: output_curvature must give slopes [B, tasks, outputs] and a "
            "curvature [B, tasks, outputs, outputs] or its diagonal, not "
            f"{list(slope.shape)} and {list(found.shape)}"
        )
    sizes = torch.stack([values.clamp(max=0).abs().sum(-1), values.abs().sum(-1)])
    return curvature, (sizes if factor is None else sizes * factor).sum(1)
