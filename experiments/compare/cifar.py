"""What makes Bayesian aggregation work on binary tasks of images, on a subset for a processor."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from experiments import methods
from experiments.cifar.benchmark import Cifar
from experiments.compare.comparison import Comparison, Entry

__all__ = ["CIFAR_SMALL"]

_SMALL: Final = Cifar(source="cifar10", training=10_000, validation=1_000, width=64)
_SETTINGS: Final = dataclasses.replace(Cifar.default_settings, epochs=20, threads=1)
# The benchmark's own, with a step that stays as large as that of the pre-training.
_BASE: Final = {"prior_variance": 1.0, "scale": "sum"}


def _entry(label: str, title: str, **changes: Any) -> Entry:
    options = methods.options("bayesagg", {**_BASE, **changes}, Cifar.method_options)
    return Entry(label, title, "bayesagg", options, _SETTINGS)


CIFAR_SMALL: Final = Comparison(
    "cifar-small",
    "CIFAR-10, ten binary tasks, 10,000 training images, width 64, 20 epochs (BayesAgg: 3 of them "
    "pre-training); four minutes a run on one core",
    _SMALL,
    [
        Entry("ls", "LS", "ls", methods.options("ls", {}), _SETTINGS),
        _entry("bayesagg", "BayesAgg: γ = 1, s = 5e-4, scale kept"),
        _entry("mean-only", "s = 0", power=0.0),
        _entry("plug-in", "uncertainty in the weights only", mean="plug-in"),
        _entry("example", "s = 0.5, weights per example", power=0.5),
        _entry("dimension", "s = 0.5, weights per dimension", power=0.5, resolution="dimension"),
        _entry("task", "s = 0.5, weights per task", power=0.5, resolution="task"),
        _entry("scale", "weights that sum to 1", scale="mean"),
        _entry("narrow", "weights that sum to 1, γ = 5e-4", scale="mean", prior_variance=5e-4),
    ],
)
"""One thing changed at a time."""
