"""Methods for multi-task training, chosen by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn

from bayesagg_pyro.heads import Head
from experiments.errors import SettingsError
from experiments.methods.base import ExampleWeights, Level, Method, MethodOptions, Needs, Scale
from experiments.methods.bayesagg import BayesAggMethod, BayesAggOptions
from experiments.methods.linear import LinearScalarization

__all__ = [
    "METHODS",
    "BayesAggMethod",
    "BayesAggOptions",
    "ExampleWeights",
    "Level",
    "LinearScalarization",
    "Method",
    "MethodOptions",
    "Needs",
    "Scale",
    "check",
    "find",
    "make",
    "options",
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


def options(
    name: str,
    given: Mapping[str, Any],
    usual: Mapping[str, Mapping[str, Any]] | None = None,
) -> MethodOptions:
    """Options of a method: those that are given, the benchmark's or the method's for the rest.

    Args:
        name: The method.
        given: Values by name; None stands for "not given".
        usual: The benchmark's ``method_options``.

    Raises:
        SettingsError: There is no such method, it has no such option, or the value cannot work.
    """
    kind = find(name).options_type
    defaults = dict((usual or {}).get(name, {}))
    chosen = {key: value for key, value in given.items() if value is not None}
    known = {field.name for field in dataclasses.fields(kind)}
    for key, value in chosen.items():
        if key not in known:
            raise SettingsError(f"{key} = {value!r} has no meaning for method {name}: leave it out")
    return kind(**{**defaults, **chosen})


def make(
    name: str, backbone: nn.Module, heads: Mapping[str, Head], options: MethodOptions
) -> Method:
    """The method called ``name`` on a backbone and heads.

    Raises:
        SettingsError: As in :func:`check`.
    """
    kind: Any = check(name, options)
    method: Method = kind(backbone, heads, options)
    return method
