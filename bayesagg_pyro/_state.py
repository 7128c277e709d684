"""States as tensors under plain names: how parts are put together, read and checked.

Everything that outlives a step is saved as tensors alone, so that any tool that knows tensors by
name (safetensors, averaging, `map_location`, safe loading) can handle it. Parts
are joined with dots; a part that is not there has no names.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro.errors import NonFiniteError, StateError


def named(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A part of a larger state: every name behind `name.`."""
    return {f"{name}.{key}": value for key, value in state.items()}


def part(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """What `named` put behind `name.`; {} if nothing."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}


def saved(tensor: Tensor) -> Tensor:
    """A copy that later steps leave alone and that shares no memory with any other."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def number(value: int | float | bool) -> Tensor:
    """A number as a tensor: whole ones as int64, others as float64."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def count(state: Mapping[str, Tensor], name: str, *, most: int | None = None) -> int:
    """A whole number of at least 0.

    Args:
        state: holds it.
        name: under which.
        most: the largest one allowed, 1 for flags.

    Raises:
        StateError: if it is not there, or something else is.
    """
    value = state.get(name)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise StateError(f"the saved state has no number {name!r}; save it again as a whole")
    found = value.item()
    whole = not isinstance(found, complex) and abs(found) < 2**62  # so no NaN either
    if not whole or found != int(found) or found < 0 or (most is not None and found > most):
        allowed = "a whole number of at least 0" if most is None else f"a whole number up to {most}"
        raise StateError(f"the saved state's {name!r} must be {allowed}, not {found}")
    return int(found)


def finite(owner: str, state: Mapping[str, Tensor], names: list[str]) -> list[Tensor]:
    """Entries that must be there, floating and finite.

    Args:
        owner: whose they are, for the message.
        state: holds them.
        names: of the entries.

    Raises:
        StateError: if one is missing or no floating tensor.
        NonFiniteError: if one holds NaN or infinity.
    """
    found = []
    for name in names:
        value = state.get(name)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise StateError(
                f"{owner}: the saved state has no floating tensor {name!r} (it has "
                f"{sorted(state)}); make the engine as it was when this was saved"
            )
        if not value.isfinite().all():
            raise NonFiniteError(
                f"{owner}: the saved {name!r} is not finite: the training had failed before it "
                "was saved; load an earlier state"
            )
        found.append(value)
    return found


def read_generator(generator: torch.Generator | None) -> dict[str, Tensor]:
    """The state of a random generator, {} for None."""
    return {} if generator is None else {"generator": generator.get_state()}


def check_generator(generator: torch.Generator | None, state: Mapping[str, Tensor]) -> None:
    """Refuse what `set_generator` could not take over.

    Raises:
        StateError: if it is no state of such a generator.
    """
    if generator is None or "generator" not in state:
        return
    value, own = state["generator"], generator.get_state()
    if value.dtype != own.dtype or value.shape != own.shape:
        raise StateError(
            f"the saved state of a random generator is {value.dtype} {list(value.shape)}, one on "
            f"{generator.device} has {own.dtype} {list(own.shape)}; random states cannot be "
            "averaged or moved to another kind of device: make the engine without a generator"
        )


def set_generator(generator: torch.Generator | None, state: Mapping[str, Tensor]) -> None:
    """Take over what `read_generator` gave, wherever it was mapped to; nothing if nothing is there.

    Raises:
        StateError: if it is no state of such a generator.
    """
    check_generator(generator, state)
    if generator is not None and "generator" in state:
        generator.set_state(state["generator"].cpu())
