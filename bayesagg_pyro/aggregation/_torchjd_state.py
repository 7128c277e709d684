"""State of an aggregator that has no complete `state_dict` of its own, as tensors.

Buffers and attributes that are tensors or arrays are saved as such; numbers, words, dtypes, devices
and tuples of them go into one JSON text, whose bytes are a tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro._state import named, part, saved
from bayesagg_pyro.errors import NonFiniteError, StateError

_OF_MODULES = frozenset(vars(nn.Module()))
#: Before the number of a tensor in a list.
_INSIDE = "#"


def read_state(module: nn.Module) -> dict[str, Tensor]:
    """Buffers, and attributes that are numbers, tensors or arrays, of a module and its parts."""
    tensors: dict[str, Tensor] = {}
    arrays: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for key, value in _attributes(module).items():
        if isinstance(value, Tensor):
            tensors[key] = saved(value)
        elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            arrays[key] = saved(torch.as_tensor(value))
        else:
            inside: dict[str, Tensor] = {}
            packed = _packed(value, inside, key)
            if packed is not NotImplemented:
                plain[key] = packed
                tensors |= inside
    text = json.dumps(plain, sort_keys=True).encode()
    numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8).clone()
    return {**named("tensors", tensors), **named("arrays", arrays), "plain": numbers}


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore what `read_state` gave.

    Raises:
        StateError, NonFiniteError: if it is something else; nothing changes then.
    """
    tensors, arrays = part(state, "tensors"), part(state, "arrays")
    try:
        text = state["plain"]
        assert text.dtype == torch.uint8
        plain = json.loads(bytes(text.cpu().tolist()))
        values = {key: _unpacked(value, tensors) for key, value in plain.items()}
    except (KeyError, AssertionError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise StateError(
            f"the saved state of {type(module).__name__} cannot be read: make the engine with the "
            "aggregation as saved (whose numbers cannot be averaged)"
        ) from e
    values |= {key: value.clone() for key, value in tensors.items() if _INSIDE not in key}
    values |= {key: value.cpu().clone().numpy() for key, value in arrays.items()}
    unknown = sorted(values.keys() - set(_attributes(module)))
    if unknown:
        raise StateError(
            f"the saved state of an aggregator holds {unknown}, which {type(module).__name__} does "
            "not have; make the engine with the aggregation as saved"
        )
    bad = [k for k, v in {**tensors, **arrays}.items() if not bool(v.isfinite().all())]
    if bad:
        raise NonFiniteError(
            f"the saved {bad[0]!r} of {type(module).__name__} is not finite: the training had "
            "failed before it was saved; load an earlier state"
        )
    for key, value in values.items():
        path, _, name = key.rpartition(".")
        setattr(module.get_submodule(path), name, value)
    for owner in module.modules():
        restart: Any = getattr(owner, "_init_optim_problem", None)
        step: Any = getattr(owner, "step", None)
        if restart is not None and step:
            restart()  # NashMTL builds its problem at its first step alone


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes and buffers of a module and its parts, by path."""
    found = {}
    for path, owner in module.named_modules():
        own = {k: v for k, v in vars(owner).items() if k not in _OF_MODULES}
        for name, value in {**own, **owner._buffers}.items():
            found[f"{path}.{name}" if path else name] = value
    return found


def _packed(value: Any, tensors: dict[str, Tensor], key: str) -> Any:
    """A value as JSON can hold it; tensors in lists go into `tensors`, under names of their own."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, Tensor):
        name = f"{key}{_INSIDE}{len(tensors)}"
        tensors[name] = saved(value)
        return {"tensor": name}
    if type(value) in (tuple, list):
        packed = [_packed(item, tensors, key) for item in value]
        if all(item is not NotImplemented for item in packed):
            return {type(value).__name__: packed}
    return NotImplemented


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dtype":
        return getattr(torch, inner)
    if kind == "device":
        return torch.device(inner)
    if kind == "tensor":
        return tensors[inner].clone()
    items = [_unpacked(item, tensors) for item in inner]
    return tuple(items) if kind == "tuple" else items
