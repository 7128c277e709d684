"""Methods for multi-task training, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..errors import SettingsError
from .base import Level, Method, MethodOptions, Needs, Scale
from .bayesagg import BayesAggMethod, BayesAggOptions
from .linear import LinearScalarization

__all__ = [
    "METHODS",
    "BayesAggMethod",
    "BayesAggOptions",
    "Level",
    "LinearScalarization",
    "Method",
    "MethodOptions",
    "Needs",
    "Scale",
    "check",
    "find",
    "make",
]

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (LinearScalarization, BayesAggMethod)
}


def find(name: str) -> type[Method]:
    """The method called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in METHODS:
        raise SettingsError(f"method = {name!r} is unknown: give one of {', '.join(METHODS)}")
    return METHODS[name]


def check(name: str, options: MethodOptions) -> type[Method]:
    """The method called ``name``, whose options are of the right type.

    Raises:
        SettingsError: There is no such method, or ``options`` are another method's.
    """
    kind = find(name)
    if type(options) is not kind.options_type:
        raise SettingsError(
            f"method {name} takes {kind.options_type.__name__}, not {type(options).__name__}"
        )
    return kind


def make(
    name: str, backbone: nn.Module, heads: Mapping[str, nn.Module], options: MethodOptions
) -> Method:
    """The method called ``name`` on a backbone and heads.

    Raises:
        SettingsError: As in :func:`check`.
    """
    kind: Any = check(name, options)
    method: Method = kind(backbone, heads, options)
    return method
