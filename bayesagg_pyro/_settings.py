"""Checks of settings that are positive numbers or counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError


def integers(least: int = 1, **settings: int) -> None:
    """Refuse settings that are no integers of at least so much.

    Raises:
        SettingError: naming the first one.
    """
    for name, value in settings.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise SettingError(f"{name} must be an integer of at least {least}, not {value!r}")


def real(value: Any) -> float:
    """A number, or that of an array with one; NaN, which no range contains, for anything else."""
    if hasattr(value, "item") and math.prod(value.shape) == 1:
        value = value.item()
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def numbers(name: str, value: object) -> Tensor:
    """A number or an array of them, as float64 on the CPU without a graph.

    Raises:
        SettingError: naming the setting, for anything else.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        # On the CPU, to be looked at while modules are built on the meta device too.
        return torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} must be one number or several, not {value!r}") from error


def positive(name: str, value: float) -> float:
    """A positive, finite number.

    Raises:
        SettingError: naming the setting.
    """
    if not 0 < real(value) < math.inf:
        raise SettingError(f"{name} must be positive and finite, not {value!r}")
    return value


def positive_or_none(name: str, value: float | None) -> float | None:
    """A positive, finite number, or None.

    Raises:
        SettingError: naming the setting.
    """
    if value is not None and not 0 < real(value) < math.inf:
        raise SettingError(f"{name} must be positive and finite, or None, not {value!r}")
    return value


def positive_each(
    name: str,
    value: float | Sequence[float] | Tensor,
    count: int,
    what: str = "tasks",
    *,
    one_for_all: bool = True,
) -> Tensor:
    """A positive number for each of `count`, or one for all, as float64 [] or [count].

    Raises:
        ShapeError: if there are others.
        SettingError: if one is no number, or not positive and finite.
    """
    tensor = numbers(name, value).clone()
    if tensor.shape != (count,) and not (one_for_all and tensor.ndim == 0):
        wanted = "one number or one" if one_for_all else "one number"
        raise ShapeError(
            f"{name} must be {wanted} for each of {count} {what}, not of shape {list(tensor.shape)}"
        )
    if not (tensor.isfinite() & (tensor > 0)).all():
        raise SettingError(f"{name} must be positive and finite, not {value}")
    return tensor.to(torch.get_default_device())
