"""K^(−1/2) of a kernel matrix: the whitening that changes smoothly with the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def inverse_root(matrix: Tensor, tolerance: float) -> Tensor:
    """The symmetric K^(−1/2) on the range of K, and zero on its null space.

    No jitter is needed where inducing points are more than a kernel can tell apart: directions with
    an eigenvalue below `tolerance` times the largest carry nothing and are left out. Unlike a
    triangular or an eigenvector whitening it depends on K alone, on no order or sign.

    Args:
        matrix: K, [M, M], symmetric positive semi-definite; differentiable.
        tolerance: relative size of an eigenvalue that counts as zero.
    """
    root: Tensor = _InverseRoot.apply(0.5 * (matrix + matrix.mT), tolerance)[0]
    return root


class _InverseRoot(torch.autograd.Function):
    """K^(−1/2) with a derivative that divides by no gap of eigenvalues (Daleckii and Krein).

    For f(λ) = λ^(−1/2) and s = sqrt(λ) the divided differences (f_i − f_j)/(λ_i − λ_j) are
    −1/(s_i s_j (s_i + s_j)); between a kept and a dropped direction they are f_i/λ_i.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        kept = values > tolerance * values[-1:].clamp(min=torch.finfo(values.dtype).tiny)
        s = torch.where(kept, values, 1.0).sqrt()
        inverse = torch.where(kept, s.reciprocal(), 0.0)
        return (vectors * inverse) @ vectors.mT, vectors, s, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, vectors, s, kept = output
        ctx.mark_non_differentiable(vectors, s, kept)
        ctx.save_for_backward(vectors, s, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        vectors, s, kept = ctx.saved_tensors
        gradient = 0.5 * (gradients[0] + gradients[0].mT)
        both = -(s[:, None] * s * (s[:, None] + s)).reciprocal()
        one = torch.where(kept[:, None], s[:, None], s).pow(-3)
        pair = torch.where(kept[:, None] & kept, both, torch.where(kept[:, None] ^ kept, one, 0.0))
        return vectors @ (pair * (vectors.mT @ gradient @ vectors)) @ vectors.mT, None
