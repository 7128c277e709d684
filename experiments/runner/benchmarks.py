"""Benchmarks by name, and settings in which they can be run in minutes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from experiments.benchmark import Benchmark
from experiments.chestxray14.benchmark import ChestXray14
from experiments.cifar.benchmark import Cifar
from experiments.digits.benchmark import Digits
from experiments.errors import SettingsError
from experiments.presets import RECOMMENDED
from experiments.qm9.benchmark import Qm9
from experiments.utkface.benchmark import UtkFace

__all__ = ["BENCHMARKS", "PAPER", "PRESETS", "Preset", "find", "preset"]

BENCHMARKS: Final[Mapping[str, type[Benchmark]]] = {
    kind.name: kind for kind in (Digits, Qm9, Cifar, ChestXray14, UtkFace)
}

PAPER: Final = "paper"
"""The preset that changes nothing."""


@dataclass(frozen=True)
class Preset:
    """What a preset changes.

    Attributes:
        benchmark: Options of the benchmark.
        settings: Settings of the trainer.
        methods: Options of methods, ``{method: {option: value}}``.
        about: What it is for, in a line.
    """

    benchmark: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    about: str = "as published"


PRESETS: Final[Mapping[str, Mapping[str, Preset]]] = {
    "qm9": {
        "small": Preset(
            benchmark={
                "molecules": 3000,
                "validation": 500,
                "test": 1000,
                "width": 32,
                "edge_width": 16,
                "groups": 2,
            },
            # Small batches and a schedule that reacts soon: there are only a few thousand steps,
            # so small that a second thread would gain little.
            settings={
                "epochs": 24,
                "batch_size": 30,
                "learning_rate": 3e-3,
                "plateau_patience": 2,
            },
            methods={"bayesagg": {**RECOMMENDED.bayesagg, "pretrain": 2}},
            about="3,000 molecules, a network of half the width, 24 epochs: minutes on a CPU",
        )
    },
}


def find(name: str) -> type[Benchmark]:
    """The benchmark called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in BENCHMARKS:
        raise SettingsError(f"benchmark = {name!r} is unknown: give one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def preset(benchmark: str, name: str) -> Preset:
    """A preset of a benchmark.

    Raises:
        SettingsError: It has none of that name.
    """
    known = {PAPER: Preset(), **PRESETS.get(benchmark, {})}
    if name not in known:
        raise SettingsError(
            f"preset = {name!r} is unknown for {benchmark}: give one of {', '.join(known)}"
        )
    return known[name]


def option_names(kind: type[Benchmark]) -> list[str]:
    """Names of a benchmark's options."""
    return [item.name for item in dataclasses.fields(kind)]
