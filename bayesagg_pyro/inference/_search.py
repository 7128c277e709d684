"""One-dimensional maximisation of many functions at once, without looking at a value."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["maximise"]

_GOLDEN = (math.sqrt(5) - 1) / 2


def maximise(
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
