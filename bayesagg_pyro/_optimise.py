"""Optimisers: a bounded search in one dimension, damped Newton steps in many, for many at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import batched_gradients
from bayesagg_pyro._pieces import CACHE, fitting
from bayesagg_pyro.errors import NumericalError

_GOLDEN = (math.sqrt(5) - 1) / 2
#: Parabolas at most, through points at either side, and the step after which no other follows.
_CLIMBS, _SIDE, _NEAR = 8, 0.01, 0.01
_HALVINGS = 40
_ARMIJO = 1e-4
_NEWTON = 10
#: Least eigenvalue, relative to the largest in size, that a mode's curvature is given.
_FLOOR = 1e-8


def search(
    objective: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    *,
    points: int = 40,
    steps: int = 45,
) -> Tensor:
    """Best of a grid, then golden-section search between its neighbours.

    Args:
        objective: values of arguments [G, ...], elementwise.
        low: [...], and
        high: [...], the ends of the range.
        points: of the grid; features of the objective narrower than its spacing may be missed.
        steps: of the search, each of which shrinks the bracket by 0.62.

    Returns:
        Arguments [...] of the maxima; the ends of the range included.
    """
    share = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
    grid = low + (high - low) * share.reshape(-1, *[1] * low.ndim)
    best = objective(grid).argmax(0, keepdim=True)
    a = grid.gather(0, (best - 1).clamp(min=0))[0]
    b = grid.gather(0, (best + 1).clamp(max=points - 1))[0]
    c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    at_c, at_d = objective(torch.stack([c, d])).unbind()
    for _ in range(steps):
        left = at_c > at_d  # the maximum lies in [a, d]
        a, b = torch.where(left, a, c), torch.where(left, d, b)
        width = _GOLDEN * (b - a)
        new = torch.where(left, b - width, a + width)
        value = objective(new[None])[0]
        c, at_c, d, at_d = (
            torch.where(left, new, d),
            torch.where(left, value, at_d),
            torch.where(left, c, new),
            torch.where(left, at_c, value),
        )
    middle = (a + b) / 2
    # A maximum at an end of the range is that end, not a point near it.
    candidates = torch.stack([middle, low, high])
    pick = objective(candidates).argmax(0, keepdim=True)
    return candidates.gather(0, pick)[0]


def climb(
    objective: Callable[[Tensor], Tensor], start: Tensor, low: Tensor, high: Tensor
) -> Tensor | None:
    """From a point near the maximum to it, by vertices of parabolas: a few evaluations in all.

    Args:
        objective: smooth, values of arguments [G, ...], elementwise.
        start: [...].
        low: [...], and
        high: [...], the ends of the range.

    Returns:
        Arguments [...] of the maxima, to about 1e-4; None if it was too far to come near them.
    """
    for _ in range(_CLIMBS):
        below, here, above = objective(torch.stack([start - _SIDE, start, start + _SIDE]))
        slope, bend = (above - below) / (2 * _SIDE), (above - 2 * here + below) / _SIDE**2
        step = torch.where(bend < 0, -slope / bend, slope.sign()).clamp(-1, 1)
        before, start = start, torch.minimum(torch.maximum(start + step, low), high)
        if not ((start - before).abs() > _NEAR).any():  # what is left is of the order of its square
            return start
    return None


def likeliest_noise(found: Tensor, count: Tensor, guess: Tensor) -> Tensor:
    """τ under log τ ~ N(log guess, 1) from the root mean square of so many residuals.

    The mode x = log(τ / guess) of −n (x + ½ (s / τ)²) − ½ x², which is s for many residuals and the
    guess for none.

    Args:
        found: s, at least 0, [tasks].
        count: n, at least 0, [tasks].
        guess: [] or [tasks].
    """
    tiny = torch.finfo(found.dtype).tiny
    ratio = (found.clamp(min=tiny) / guess).log()
    # The slope n ((s/τ)² − 1) − x is convex and falls; it is positive at −n, and at x = r below 0
    # or r − ½ log(1 + r / n) above, r = log s: from there Newton's steps never pass the mode.
    above = (ratio - 0.5 * (ratio.clamp(min=0) / count).log1p()).clamp(min=0)
    mode = torch.where(ratio > 0, above, torch.maximum(ratio, -count))
    for _ in range(_NEWTON):
        share = count * (2 * (ratio - mode)).exp()
        mode = mode + (share - count - mode) / (2 * share + 1)
    return mode.exp() * guess


def backtrack(
    objective: Callable[[Tensor], Tensor],
    point: Tensor,
    step: Tensor,
    value: Tensor,
    square: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor]:
    """Lengths of Newton steps, halved until each objective falls enough (Armijo), NaN never does.

    Args:
        objective: to be made small, maps [..., P] to [...].
        point: [..., P].
        step: [..., P].
        value: of the objective at the point, [...].
        square: of the Newton decrement, [...].
        length: to begin with, [...]; 0 leaves the point where it is.

    Returns:
        Lengths, and for which of them the objective does not fall, as far as arithmetic resolves.
    """
    slack = torch.finfo(point.dtype).eps * value.abs() * 16
    moving = length > 0
    for _ in range(_HALVINGS):
        fallen = value - objective(point + length[..., None] * step)
        short = moving & ~(fallen >= _ARMIJO * length * square - slack)
        if not short.any():
            break
        length = torch.where(short, length / 2, length)
    return length, short


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
            length, short = backtrack(
                lambda trial: -log_density(trial), point, move, value, decrement, active.to(point)
            )
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
    matrix = matrix.clone()
    matrix[bad] = linalg.by_size(matrix[bad], _FLOOR)[0]
    tril = tril.clone()
    tril[bad] = torch.linalg.cholesky(matrix[bad])
    return matrix, tril


def hessian(value: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [..., P] and Hessian [..., P, P] of a value [...] that couples no two entries of it.

    Args:
        value: [...], computed from `weight`.
        weight: [..., P], a leaf that requires gradients.
    """
    size = weight.shape[-1]
    (slope,) = torch.autograd.grad(value.sum(), weight, create_graph=True)
    eye = torch.eye(size, dtype=weight.dtype, device=weight.device)
    directions = eye.reshape(size, *[1] * (weight.ndim - 1), size).expand(size, *weight.shape)
    # A few columns at a time: each carries a copy of everything per example.
    rows = fitting(weight[..., 0].numel(), CACHE // 256)
    columns = [
        batched_gradients(slope, weight, part, retain_graph=True) for part in directions.split(rows)
    ]
    matrix = torch.cat(columns).movedim(0, -1)
    return slope.detach(), 0.5 * (matrix + matrix.mT)
