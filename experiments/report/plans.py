"""What each table shows: its numbers and its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from experiments import published

__all__ = ["TABLES", "Measure", "Plan"]


@dataclass(frozen=True)
class Measure:
    """One number per run.

    Attributes:
        benchmark: Name of the benchmark.
        what: ``"delta_m"``, a task, or a figure.
        decimals: Digits after the point.
    """

    benchmark: str
    what: str
    decimals: int


@dataclass(frozen=True)
class Plan:
    """What a table shows.

    Attributes:
        title: Caption.
        measures: Its numbers, of one benchmark or of several.
        methods: Names in print of its rows, in order.
        stacked: Ours and the paper's one above the other, where there are many columns.
    """

    title: str
    measures: tuple[Measure, ...]
    methods: tuple[str, ...]
    stacked: bool = False


_ROWS: Final = tuple(published.load("qm9").rows)
_WITHOUT_STL: Final = _ROWS[1:]
_QM9_DECIMALS: Final = (3, 3, 2, 2, 3, 2, 2, 2, 2, 2, 3)

TABLES: Final[Mapping[str, Plan]] = {
    "qm9": Plan("QM9: Δm of test errors", (Measure("qm9", "delta_m", 1),), _WITHOUT_STL),
    "cifar-chest": Plan(
        "CIFAR-MTL: test accuracy; ChestX-ray14: Δm of test areas under the ROC curve",
        (Measure("cifar-mtl", "accuracy", 2), Measure("chestxray14", "delta_m", 2)),
        _WITHOUT_STL,
    ),
    "utkface": Plan(
        "UTKFace: test results",
        (
            Measure("utkface", "age", 2),
            Measure("utkface", "gender", 2),
            Measure("utkface", "ethnicity", 2),
            Measure("utkface", "delta_m", 2),
        ),
        _ROWS,
    ),
    "ensembles": Plan(
        "Δm against deep ensembles",
        (Measure("qm9", "delta_m", 1), Measure("utkface", "delta_m", 2)),
        tuple(published.other("ensembles")["rows"]),
    ),
    "qm9-full": Plan(
        "QM9: test errors of all tasks",
        (
            *(
                Measure("qm9", task, decimals)
                for task, decimals in zip(published.load("qm9").tasks, _QM9_DECIMALS, strict=True)
            ),
            Measure("qm9", "delta_m", 1),
        ),
        _ROWS,
        stacked=True,
    ),
    "chest-full": Plan(
        "ChestX-ray14: test areas under the ROC curve",
        (
            *(Measure("chestxray14", task, 4) for task in published.load("chestxray14").tasks),
            Measure("chestxray14", "delta_m", 2),
        ),
        _ROWS,
        stacked=True,
    ),
    "digits": Plan(
        "Digits: test results (not a benchmark of the paper)",
        (
            Measure("digits", "number", 3),
            Measure("digits", "odd", 2),
            Measure("digits", "loop", 2),
            Measure("digits", "digit", 2),
            Measure("digits", "delta_m", 2),
        ),
        _ROWS,
    ),
}
