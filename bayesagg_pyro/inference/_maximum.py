"""Posterior modes by damped Newton steps on automatic derivatives: any smooth head, in batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro.errors import NumericalError
from bayesagg_pyro.inference._joint import hessian

__all__ = ["maximise"]

_HALVINGS = 30
_ARMIJO = 1e-4
#: Least eigenvalue, relative to the largest in size, that a mode's curvature is given.
_FLOOR = 1e-8


def maximise(
    log_density: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    tolerance: float = 1e-6,
    max_steps: int = 50,
) -> tuple[Tensor, Tensor, Tensor]:
    """Modes of independent log-densities, and their curvature there.

    Where the Hessian of −log p is not positive definite (likelihoods that are not log-concave), its
    eigenvalues are taken by size: the step then still climbs.

    Args:
        log_density: maps [..., P] to [...]; entries do not mix.
        start: [..., P].
        tolerance: on the Newton decrement, in standard deviations.
        max_steps: at which to give up.

    Returns:
        Modes [..., P], precisions [..., P, P] (positive definite), and decrements [...].
    """
    point = start.detach()
    for step in range(max_steps + 1):
        leaf = point.clone().requires_grad_()
        value = -log_density(leaf)
        slope, matrix = hessian(value, leaf)
        value, matrix = value.detach(), matrix.detach()
        with torch.no_grad():
            matrix, tril = _definite(matrix)
            move = -torch.cholesky_solve(slope[..., None], tril)[..., 0]
            decrement = -(slope * move).sum(-1)
            active = decrement > tolerance**2
            if step == max_steps or not active.any():
                break
            length = active.to(point.dtype)
            slack = torch.finfo(point.dtype).eps * value.abs() * 16
            for _ in range(_HALVINGS):
                fallen = value + log_density(point + length[..., None] * move)
                # Written so that NaN counts as short.
                short = active & ~(fallen >= _ARMIJO * length * decrement - slack)
                if not short.any():
                    break
                length = torch.where(short, length / 2, length)
            if not (active & ~short).any():  # the arithmetic resolves no more
                break
            point = point + torch.where(short, 0.0, length)[..., None] * move
    return point, matrix, decrement.clamp(min=0).sqrt()


def _definite(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix and its Cholesky factor; eigenvalues by size where it is not definite."""
    tril, failed = torch.linalg.cholesky_ex(matrix)
    bad = failed > 0
    if not bad.any():
        return matrix, tril
    if not matrix[bad].isfinite().all():
        raise NumericalError(
            "a log-density overflows near its maximum over the weights; strengthen the prior, or "
            "standardise features and targets"
        )
    values, vectors = torch.linalg.eigh(matrix[bad])
    values = values.abs()
    values = values.maximum(_FLOOR * values.amax(-1, keepdim=True))
    matrix = matrix.clone()
    matrix[bad] = (vectors * values[..., None, :]) @ vectors.mT
    tril = tril.clone()
    tril[bad] = torch.linalg.cholesky(matrix[bad])
    return matrix, tril
