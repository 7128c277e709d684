"""Powers of precision weights: one for all tasks, one per task, or one per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

from bayesagg_pyro.errors import DtypeError, SettingError

Power: TypeAlias = float | Sequence[float] | Mapping[str, float]


def checked(power: Any) -> list[float]:
    """The powers that are given, each of which must be a number in [0, 1].

    Raises:
        DtypeError: if one is no number.
        SettingError: if one is outside [0, 1].
    """
    each = {"": power}  # behind what a message says of it
    if isinstance(power, Mapping):
        each = {f" of {name!r}": value for name, value in power.items()}
    elif isinstance(power, Sequence) and not isinstance(power, str):
        each = {f" of task {task}": value for task, value in enumerate(power)}
    for owner, value in each.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise DtypeError(
                f"power{owner} must be a number in [0, 1], not {value!r}; give one, or one "
                "per task in a list, or {head name: number}"
            )
        if not 0 <= float(value) <= 1:
            raise SettingError(f"power{owner} must lie in [0, 1], not {value}")
    return list(each.values())
