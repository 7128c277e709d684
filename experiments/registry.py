"""Benchmarks by name, without importing any: those here, installed ones, and ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from experiments.errors import SettingsError

if TYPE_CHECKING:
    from experiments.benchmark import Benchmark

BUILT_IN: Final[Mapping[str, str]] = {
    "digits": "experiments.digits.benchmark:Digits",
    "diabetes": "experiments.diabetes.benchmark:Diabetes",
    "qm9": "experiments.qm9.benchmark:Qm9",
    "cifar-mtl": "experiments.cifar.benchmark:Cifar",
    "chestxray14": "experiments.chestxray14.benchmark:ChestXray14",
    "utkface": "experiments.utkface.benchmark:UtkFace",
    "tox21": "experiments.tox21.benchmark:Tox21",
    "rand": "experiments.rand.benchmark:Rand",
    "scenes": "experiments.dense.scenes:Scenes",
    "nyuv2": "experiments.dense.public:NyuV2",
    "cityscapes": "experiments.dense.public:Cityscapes",
}

GROUP: Final = "bayesagg_pyro.benchmarks"
"""Entry points of this group are benchmarks, too: ``mine = "package.module:Class"``."""


@cache
def _installed() -> Mapping[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Names that need no module in front."""
    return [*BUILT_IN, *_installed()]


def place(name: str) -> str:
    """``module:Class`` of a benchmark.

    Raises:
        SettingsError: There is none of that name; the message lists those there are.
    """
    if ":" in name:
        return name
    found = BUILT_IN.get(name) or _installed().get(name)
    if found is None:
        raise SettingsError(
            f"benchmark = {name!r} is unknown: give one of {', '.join(names())}, or module:Class "
            "for one of your own"
        )
    return found


def built_in(name: str) -> type[Benchmark] | None:
    """The benchmark of that name that is part of this package, imported; None if there is none."""
    return find(name) if name in BUILT_IN else None


def find(name: str) -> type[Benchmark]:
    """The benchmark called ``name``, imported.

    Raises:
        SettingsError: There is none, or what is there is no benchmark.
    """
    from experiments.benchmark import Benchmark

    found: type[Benchmark] = imported(f"benchmark = {name!r}", place(name), Benchmark)
    return found


def imported(owner: str, place: str, base: type) -> Any:
    """The class at ``module:Class``, a subclass of ``base``.

    Args:
        owner: Who speaks in errors.
        place: ``module:Class``.
        base: What it must derive from.

    Raises:
        SettingsError: It cannot be imported, or is something else.
    """
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"{owner} cannot be imported ({error}): give module:Class, with the module's folder in "
            "PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SettingsError(f"{owner} is no subclass of {base.__module__}.{base.__qualname__}")
    return found
