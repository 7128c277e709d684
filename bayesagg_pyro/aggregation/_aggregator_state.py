"""State of an aggregator that has no complete `state_dict` of its own, as plain values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["load_state", "read_state"]

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_OF_MODULES = frozenset(vars(nn.Module()))
_ARRAY = "array"


def read_state(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Buffers, and attributes that are numbers, tensors or arrays, of a module and its parts."""
    return {path: _read(part) for path, part in module.named_modules()}


def load_state(module: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore what `read_state` gave."""
    for path, part in module.named_modules():
        for name, value in state.get(path, {}).items():
            setattr(part, name, _unpacked(value))
        restart: Any = getattr(part, "_init_optim_problem", None)
        step: Any = getattr(part, "step", None)
        if restart is not None and step:
            restart()  # NashMTL builds its problem at its first step alone


def _read(part: nn.Module) -> dict[str, Any]:
    attributes = {k: v for k, v in vars(part).items() if k not in _OF_MODULES}
    values = {**attributes, **part._buffers}
    packed = {name: _packed(value) for name, value in values.items()}
    return {name: value for name, value in packed.items() if value is not NotImplemented}


def _packed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return {_ARRAY: torch.as_tensor(copy.copy(value))}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        packed = [_packed(item) for item in value]
        if any(item is NotImplemented for item in packed):
            return NotImplemented
        return type(value)(packed)
    return NotImplemented


def _unpacked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value[_ARRAY].clone().numpy()
    if isinstance(value, (tuple, list)):
        return type(value)(_unpacked(item) for item in value)
    return value.clone() if isinstance(value, Tensor) else value
