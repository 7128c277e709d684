"""How fast a head stage of binary tasks could be: its operations and bytes over measured rates.

Counted is what the stage cannot do without, each at the rate that this machine reaches on it alone:
multiplications of the algebra of T precisions of size D (as those of a matrix product of that
size), transcendental functions of the quadrature, and passes over tensors [T, B, d].
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

#: Of the rule, and functions at each of its nodes: two exponentials, a logarithm, a sigmoid.
_NODES, _FUNCTIONS = 28, 4
#: Tensors [T, B, d] that are written or read: covariance, mean, variance, weights, and the last
#: three once more for the direction.
_PASSES = 7


def floor(batch: int, tasks: int, size: int) -> dict[str, float]:
    """Seconds of each part, and their "sum".

    Args:
        batch: B.
        tasks: T.
        size: d; a bias makes it D = d + 1.
    """
    wide = size + 1
    # Σ ω h hᵀ (half of it), its factor and that one's inverse, and S h by two triangles.
    products = tasks * (batch * wide**2 + 2 / 3 * wide**3 + 2 * batch * wide**2)
    functions = _FUNCTIONS * _NODES * tasks * batch
    numbers = _PASSES * tasks * batch * size
    square = torch.randn(wide, wide, dtype=torch.float64)
    points = torch.randn(2**15, dtype=torch.float64)
    tensor = torch.randn(tasks, batch, size)
    product, function, moved = (torch.empty_like(x) for x in (square, points, tensor))
    parts = {
        "algebra": products * _seconds(lambda: torch.mm(square, square, out=product)) / 2 / wide**3,
        "functions": functions
        * _seconds(lambda: torch.sigmoid(points, out=function))
        / points.numel(),
        "tensors": numbers * _seconds(lambda: moved.copy_(tensor)) / (2 * tensor.numel()),
    }
    return parts | {"sum": sum(parts.values())}


def _seconds(call: Callable[[], object], repeats: int = 30) -> float:
    """A typical fast one: others only ever slow it down."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return float(np.quantile(found, 0.25))
