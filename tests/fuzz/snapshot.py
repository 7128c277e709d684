"""Everything that a refused call must leave as it was, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import bayesagg_pyro as ba

__all__ = ["changed", "flat", "snapshot"]


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and sequences by their path; tensors are copied."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from flat(entry, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{path}/{index}")
    else:
        yield path, value.detach().clone() if isinstance(value, Tensor) else value


def snapshot(mtl: ba.BayesAgg, *, world: bool = True) -> dict[str, Any]:
    """State, gradients and, for `world`, torch's own generator."""
    found = dict(flat(mtl.state_dict(), "state"))
    for name, weight in mtl.named_parameters():
        found[f"grad/{name}"] = None if weight.grad is None else weight.grad.clone()
    found["training"] = mtl.training
    if world:
        found["torch's generator"] = torch.get_rng_state()
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Paths whose values are not the same to the bit."""
    paths = sorted(before.keys() ^ after.keys())
    return paths + [
        path for path in before.keys() & after.keys() if not _same(before[path], after[path])
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) != isinstance(b, Tensor):
        return False
    if not isinstance(a, Tensor):
        return bool(a == b or (a != a and b != b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    equal = a == b
    if a.is_floating_point():
        equal = equal | (a.isnan() & b.isnan())
    return bool(equal.all())
