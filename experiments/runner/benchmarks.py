"""The benchmarks that are part of this package, imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from experiments import registry
from experiments.benchmark import Benchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS: Final[Mapping[str, type[Benchmark]]] = {
    name: registry.find(name) for name in registry.BUILT_IN
}
