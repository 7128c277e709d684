"""The little linear algebra that every stage shares: factors and weighted Gram matrices.

Posteriors are kept as precisions and their Cholesky factors. A precision is a sum of a proper prior
and of positive semi-definite data terms, so a factorisation fails only when the two differ by more
than the arithmetic resolves; the jitter that is then added is reported, never hidden.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro._pieces import BLOCK
from bayesagg_pyro.errors import NumericalError

__all__ = [
    "Factor",
    "all_finite",
    "by_size",
    "cholesky",
    "gram",
    "gram_rows",
    "head_dtype",
    "inverse_factor_rows",
    "inverse_tril",
    "is_lossy",
    "matvec",
    "nonzero",
    "reciprocal",
    "solve",
    "split_rows",
    "square_root",
]

#: Relative jitters tried in turn, in units of the matrix' own diagonal and of sqrt(eps).
_LADDER = (1e-2, 1.0, 1e2)
#: Condition of a precision, as its factor's diagonal bounds it, from which a square root is worth
#: its price: a factor loses about 2e-16 times as much, relatively.
_LOSSY = 1e7


class Factor(NamedTuple):
    """A Cholesky factor and what it took to get it.

    Attributes:
        tril: lower triangular, [..., D, D].
        jitter: [...], the multiple of the diagonal that was added to it (0 when none was needed).
    """

    tril: Tensor
    jitter: Tensor


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite; waits for the device.

    One NaN or infinity makes a sum so, and a sum is far less work than looking at each.
    """
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def head_dtype(device: torch.device) -> torch.dtype:
    """The precision of head algebra on `device`: float64 wherever it exists."""
    return torch.float32 if device.type == "mps" else torch.float64


def cholesky(matrix: Tensor, *, what: str = "precision matrix") -> Factor:
    """Factor a symmetric positive definite matrix; add the least jitter that works, and report it.

    Jitter multiplies the diagonal, so that it respects units of very different scale. On the CPU it
    is tried only after a failure. On an accelerator looking at the outcome would stall the device:
    one fallback is computed beside the plain factor and selected there, and a matrix that defeats
    both gives NaN, which the engine's validation finds.

    Args:
        matrix: [..., D, D].
        what: how an error names the matrix.

    Raises:
        NumericalError: on the CPU, if no allowed jitter helps.
    """
    tril, failed = torch.linalg.cholesky_ex(matrix)
    jitter = torch.zeros(failed.shape, dtype=matrix.dtype, device=matrix.device)
    unit = torch.finfo(matrix.dtype).eps ** 0.5
    if matrix.device.type == "cpu":
        if not failed.any():
            return Factor(tril, jitter)
        for step in _LADDER:
            tril, jitter, failed = _retry(matrix, tril, jitter, failed, step * unit)
            if not failed.any():
                return Factor(tril, jitter)
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        if not all_finite(matrix):
            raise NumericalError(
                f"the {what} holds NaN or infinity. Standardise features and targets, or look for "
                "a likelihood that gives NaN."
            )
        raise NumericalError(
            f"the {what} is not positive definite, even with {_LADDER[-1] * unit:.1e} of its "
            f"diagonal added (diagonal from {diagonal.min():.3g} to {diagonal.max():.3g}). "
            "Strengthen the prior, or scale or standardise the features."
        )
    tril, jitter, failed = _retry(matrix, tril, jitter, failed, unit)
    return Factor(torch.where((failed > 0)[..., None, None], torch.nan, tril), jitter)


def is_lossy(tril: Tensor, failed: Tensor) -> bool:
    """Whether a factorisation failed, or lost so many digits that a square root should replace it.

    Waits for the device. The diagonal of L bounds the condition of L Lᵀ from below.
    """
    diagonal = tril.diagonal(dim1=-2, dim2=-1)
    ratio = diagonal.amax(-1) / diagonal.amin(-1)
    return bool((failed > 0).any()) or not bool((ratio.square() < _LOSSY).all())


def square_root(
    prior_tril: Tensor, design: Tensor, root_weight: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Factor of Λ = L_p L_pᵀ + Σ_b ω_b h_b h_bᵀ, and Λ⁻¹ Σ_b ω_b h_b r_b, without forming Λ.

    By QR of the stacked [L_pᵀ; ω^½ H], whose condition number is the square root of Λ's: half as
    many digits are lost as in Λ (Golub and Van Loan, Matrix Computations, 5.3).

    Args:
        prior_tril: L_p, [t, D, D], t being the number of tasks, or 1 where all share Λ.
        design: H, [N, D].
        root_weight: ω^½, [N, t].
        residual: r, [N, tasks].

    Returns:
        The lower triangular factor, [t, D, D], and the solutions, [tasks, D].

    Raises:
        NumericalError: if Λ is singular or not finite.
    """
    shared, size = len(prior_tril) == 1, design.shape[1]
    right = residual * root_weight
    right = right[None] if shared else right.mT[..., None]  # [t, N, k]
    r = torch.nn.functional.pad(prior_tril.mT, (0, right.shape[-1]))
    for rows in torch.arange(len(design)).split(max(size, BLOCK // (len(r) * r.shape[-1]))):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        block = design[part] * root_weight[part].mT[..., None]
        stacked = torch.cat([r, torch.cat([block, right[:, part]], -1)], -2)
        r = torch.linalg.qr(stacked, mode="r").R
    diagonal = r.diagonal(dim1=-2, dim2=-1)[:, :size]
    if not bool((diagonal != 0).all() & diagonal.isfinite().all()):
        raise NumericalError(
            "a posterior precision is singular or not finite, even as a square root. Strengthen "
            "the prior, or scale or standardise the features."
        )
    r = r[:, :size] * diagonal.sign()[..., None]
    solution = torch.linalg.solve_triangular(r[..., :size], r[..., size:], upper=True)
    return r[..., :size].mT.contiguous(), solution[0].mT if shared else solution[..., 0]


def _retry(
    matrix: Tensor, tril: Tensor, jitter: Tensor, failed: Tensor, amount: float
) -> tuple[Tensor, Tensor, Tensor]:
    bumped = matrix + torch.diag_embed(amount * matrix.diagonal(dim1=-2, dim2=-1))
    second, still = torch.linalg.cholesky_ex(bumped)
    bad = failed > 0
    return (
        torch.where(bad[..., None, None], second, tril),
        torch.where(bad, amount, jitter),
        torch.where(bad, still, failed),
    )


def inverse_tril(tril: Tensor) -> Tensor:
    """L⁻¹ of a lower triangular L, [..., D, D]; S = L⁻ᵀ L⁻¹ is the covariance of precision L Lᵀ."""
    eye = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
    inverse: Tensor = torch.linalg.solve_triangular(tril, eye, upper=False)
    return inverse


def solve(tril: Tensor, columns: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ applied to one column per task.

    Args:
        tril: [T or 1, D, D]; with one factor all tasks are solved as columns of one system.
        columns: [T, D].

    Returns:
        [T, D].
    """
    if tril.shape[0] == 1:
        return torch.cholesky_solve(columns.mT, tril[0]).mT
    return torch.cholesky_solve(columns[..., None], tril)[..., 0]


def reciprocal(values: Tensor) -> Tensor:
    """1 / σ of values σ of at least 0, and 0 where they are 0."""
    tiny = math.sqrt(torch.finfo(values.dtype).tiny)
    return torch.where(values > 0, values.clamp(min=tiny).reciprocal(), 0.0)


def nonzero(counts: Tensor) -> Tensor:
    """Counts of at least 0 to divide by, 1 where there is nothing to divide."""
    return torch.where(counts > 0, counts, 1.0)


def matvec(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Matrices [..., P, D] applied to one vector each, [..., D]."""
    return (matrix @ vectors[..., None])[..., 0]


def by_size(matrix: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Symmetric matrices whose eigenvalues are taken by size, and are so positive definite.

    A Newton step with such a matrix still leads downhill.

    Args:
        matrix: [..., P, P].
        floor: the least eigenvalue there will be, as a share of the largest.

    Returns:
        The matrices, as they are where nothing changes, and the largest change of an eigenvalue
        over the largest eigenvalue, [...].
    """
    values, vectors = torch.linalg.eigh(matrix)
    largest = values.abs().amax(-1, keepdim=True)
    good = values.abs().maximum(floor * largest)
    change = ((good - values) / largest).amax(-1)
    found = (vectors * good[..., None, :]) @ vectors.mT
    return torch.where(change[..., None, None] > 0, found, matrix), change


def gram(design: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weighted Gram matrices Σ_b w_bt h_b h_bᵀ.

    Args:
        design: [B, D].
        weight: [B, T], or None for weights of one shared by all tasks.

    Returns:
        [T, D, D], or [1, D, D] without weights.
    """
    if weight is None:
        return (design.mT @ design)[None]
    return (design[None] * weight.mT[..., None]).mT @ design


def split_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Lower triangle of symmetric matrices [T, D, D] by rows, in two contiguous blocks.

    The two blocks on the diagonal are whole, not triangles.

    Returns:
        [T, k, k] and [T, D - k, D], k being the larger half of D.
    """
    half = -(-matrix.shape[-1] // 2)
    return matrix[:, :half, :half].contiguous(), matrix[:, half:].contiguous()


def gram_rows(
    design: Tensor, weight: Tensor, upper: Tensor, lower: Tensor
) -> tuple[Tensor, Tensor]:
    """`gram(design, weight)` plus a matrix, both as `split_rows` gives them.

    Args:
        design: [B, D].
        weight: [B, T].
        upper: of the matrix that is added, [T, k, k].
        lower: [T, D - k, D].
    """
    columns, weight = design.mT.contiguous(), weight.mT.contiguous()[:, None]
    half = upper.shape[-1]

    def block(rows: Tensor, others: Tensor, added: Tensor) -> Tensor:
        # One product over all tasks' rows: larger and so faster than one for each task.
        product: Tensor = (rows * weight).flatten(0, 1) @ others
        product = product.unflatten(0, (len(added), -1))
        return product.add_(added)

    return (block(columns[:half], design[:, :half], upper), block(columns[half:], design, lower))


def inverse_factor_rows(upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor] | None:
    """L⁻¹ of Λ = L Lᵀ by rows, for Λ by rows (`split_rows`); None if it is not positive definite.

    Looks at the outcome, so on an accelerator it waits for the device.
    """
    half = upper.shape[-1]
    first, failed = torch.linalg.cholesky_ex(upper, upper=True)  # as LAPACK takes it: no copies
    first = inverse_tril(first.mT)
    corner = lower[..., :half]
    # Minus the factor's lower left block.
    coupling = torch.baddbmm(corner, corner, first.mT, beta=0, alpha=-1)
    schur = torch.baddbmm(lower[..., half:], coupling, coupling.mT, alpha=-1)
    second, failed_too = torch.linalg.cholesky_ex(schur, upper=True)
    if failed.any() or failed_too.any():
        return None
    second = inverse_tril(second.mT)
    corner = first.mT @ (second @ coupling).mT
    return first, torch.cat([corner, second.mT], -2).mT  # columns are contiguous in either block
