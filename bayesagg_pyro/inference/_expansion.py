"""Second-order expansions of any head: of linear outputs (`_ggn`), or of shared weights."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from torch import Tensor

from bayesagg_pyro.heads import Head, SharedWeights
from bayesagg_pyro.inference import _ggn, _nonlinear
from bayesagg_pyro.inference._curvature import Structure
from bayesagg_pyro.inference._ggn import Chunk, Expansion

__all__ = ["check_structure", "expand", "value"]


def check_structure(head: Head, structure: Structure) -> None:
    """Refuse heads without second-order expansion and structures that do not fit.

    Raises:
        SettingError: naming the head and the remedy.
    """
    if isinstance(head, SharedWeights):
        _nonlinear.check_structure(head, structure)
    else:
        _ggn.check_structure(head, structure)


def expand(
    head: Head,
    chunks: Iterable[Chunk],
    point: Tensor,
    structure: Structure,
    *,
    separate_bias: bool = False,
) -> Expansion:
    """Σ −log p at `point`, [blocks, P], to second order, summed over chunks of examples."""
    if not isinstance(head, SharedWeights):
        return _ggn.expand(head, chunks, point, structure, separate_bias=separate_bias)
    parts = (_nonlinear.expand(head, chunk, point, structure) for chunk in chunks)
    return reduce(lambda total, part: total + part, parts)


def value(head: Head, chunks: Iterable[Chunk], point: Tensor) -> Tensor:
    """Σ −log p at `point` over the observed examples, [blocks]."""
    if not isinstance(head, SharedWeights):
        return _ggn.value(head, chunks, point)
    parts = (_nonlinear.value(head, chunk, point) for chunk in chunks)
    return reduce(lambda total, part: total + part, parts)
