"""State of what the engine keeps beside its modules, saved and restored all or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bayesagg_pyro._checks import check_names
from bayesagg_pyro.errors import StateError

__all__ = ["Stateful", "load_states", "states"]


class Stateful(Protocol):
    """What holds a state: for one head, or for all."""

    def state_dict(self) -> Any:
        """The state as plain values."""

    def load_state_dict(self, state: Any, /) -> None:
        """Take over what `state_dict` saved."""


def states(parts: Mapping[str, Mapping[str, Stateful]]) -> dict[str, dict[str, Any]]:
    """{part: {head: state}}.

    Args:
        parts: {part: {head: holder of its state}}.
    """
    return {
        part: {name: owner.state_dict() for name, owner in owners.items()}
        for part, owners in parts.items()
    }


def load_states(
    parts: Mapping[str, Mapping[str, Stateful]], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Take over what `states` gave; where one refuses, all are as before.

    Raises:
        TaskError: if the state is of other heads.
        StateError: if a part is missing.
    """
    for part, owners in parts.items():
        if part not in state:
            raise StateError(
                f"the saved state has no {part!r}: it was made by an earlier version of this "
                "package; load it with that one"
            )
        check_names(state[part], owners)
    before = states(parts)
    try:
        _load(parts, state)
    except Exception:
        _load(parts, before)
        raise


def _load(
    parts: Mapping[str, Mapping[str, Stateful]], state: Mapping[str, Mapping[str, Any]]
) -> None:
    for part, owners in parts.items():
        for name, owner in owners.items():
            owner.load_state_dict(state[part][name])
