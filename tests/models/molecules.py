"""Random molecules for the tests of the backbones."""

from __future__ import annotations

import torch
from torch import Tensor

Molecule = tuple[Tensor, Tensor]


def random_molecules(
    sizes: list[int], seed: int, dtype: torch.dtype = torch.float64, nodes: int = 11, edges: int = 5
) -> list[Molecule]:
    """Molecules with unrelated values everywhere, so that i-j differs from j-i."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, nodes, generator=generator, dtype=dtype),
            torch.randn(n, n, edges, generator=generator, dtype=dtype),
        )
        for n in sizes
    ]
