"""A saved state with one thing wrong."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import torch
from torch import Tensor

__all__ = ["spoilt_state"]


def spoilt_state(state: Any, seed: int) -> tuple[str, dict[str, Any]]:
    """A copy of a state with one entry that must be refused, and where and what that is."""
    rng = Random(seed)
    bad = copy.deepcopy(dict(state))
    places: list[tuple[str, dict[Any, Any], Any]] = []
    _walk(bad, "state", places)
    path, owner, key = rng.choice(places)
    value = owner[key]
    ways = ["missing", "nonsense"]
    if isinstance(value, Tensor):
        ways += ["shape", "shape"] * (not str(key).endswith("elbo"))  # which is of any length
        if value.is_floating_point() and value.numel() and "info" not in path:
            # Bounds of a kernel's parameters are infinite as they should be.
            ways += ["NaN", "inf" if value.isfinite().all() else "NaN"] * 2
    way = rng.choice(ways)
    if way == "missing":
        del owner[key]
    elif way == "nonsense":
        owner[key] = "nonsense"
    elif way == "shape":
        owner[key] = torch.cat([value.reshape(-1), value.reshape(-1)[:1], value.new_ones(6)])
    else:
        owner[key] = value.reshape(-1).clone()
        owner[key][0] = float(way)
        owner[key] = owner[key].reshape(value.shape)
    return f"{path} {way}", bad


def _walk(value: dict[Any, Any], path: str, places: list[tuple[str, dict[Any, Any], Any]]) -> None:
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            _walk(entry, f"{path}/{key}", places)
        elif entry is not None:
            places.append((f"{path}/{key}", value, key))
