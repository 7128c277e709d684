"""What each table shows: its numbers and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from experiments import published
from experiments.scores.calibration import tells_calibration
from experiments.tables.table import MISSING, Cell

DELTA_M: Final = "delta_m"


@dataclass(frozen=True)
class Measure:
    """One number per run.

    Attributes:
        benchmark: Name of the benchmark.
        what: ``"delta_m"``, a task, or a figure.
        heading: For its column.
        decimals: Digits after the point; None for about four significant ones.
        higher_is_better: True for accuracies, False for errors.
        factor: Shown number per number of a record.
    """

    benchmark: str
    what: str
    heading: str
    decimals: int | None = None
    higher_is_better: bool = False
    factor: float = 1.0

    @property
    def title(self) -> str:
        """The heading, with an arrow towards what is better."""
        return f"{self.heading} {'↑' if self.higher_is_better else '↓'}"

    def better(self, one: float, other: float) -> bool:
        """Whether one value is the better one."""
        return one > other if self.higher_is_better else one < other


@dataclass(frozen=True)
class Plan:
    """What a table shows.

    Attributes:
        title: Caption.
        measures: Its numbers, of one benchmark or of several.
        methods: Names in print of its rows, in order.
        stacked: Ours and the paper's one above the other, where there are many columns.
        closed: Whether methods that are not named here stay out.
    """

    title: str
    measures: tuple[Measure, ...]
    methods: tuple[str, ...]
    stacked: bool = False
    closed: bool = False


def _delta_m(benchmark: str, decimals: int) -> Measure:
    return Measure(benchmark, DELTA_M, "Δm %", decimals)


def _published(benchmark: str, *decimals: int) -> tuple[Measure, ...]:
    """The numbers of a published table, task by task, with so many digits each."""
    table = published.load(benchmark)
    measures = []
    for place, (task, digits) in enumerate(zip(table.tasks, decimals, strict=True)):
        unit = f" ({table.units[place]})" if table.units[place] else ""
        better, factor = table.higher_is_better[place], table.factors[place]
        heading = f"{table.symbols[place]}{unit}"
        measures.append(Measure(benchmark, task, heading, digits, better, factor))
    return tuple(measures)


_ROWS: Final = tuple(published.load("qm9").rows)
_WITHOUT_STL: Final = _ROWS[1:]

TABLES: Final[Mapping[str, Plan]] = {
    "qm9": Plan("QM9: Δm of test errors", (_delta_m("qm9", 1),), _WITHOUT_STL),
    "cifar-chest": Plan(
        "CIFAR-MTL: test accuracy; ChestX-ray14: Δm of test areas under the ROC curve",
        (*_published("cifar-mtl", 2), _delta_m("chestxray14", 2)),
        _WITHOUT_STL,
    ),
    "utkface": Plan(
        "UTKFace: test results", (*_published("utkface", 2, 2, 2), _delta_m("utkface", 2)), _ROWS
    ),
    "ensembles": Plan(
        "Δm against deep ensembles",
        (_delta_m("qm9", 1), _delta_m("utkface", 2)),
        tuple(published.other("ensembles")["rows"]),
        closed=True,
    ),
    "qm9-full": Plan(
        "QM9: test errors of all tasks",
        (*_published("qm9", 3, 3, 2, 2, 3, 2, 2, 2, 2, 2, 3), _delta_m("qm9", 1)),
        _ROWS,
        stacked=True,
    ),
    "chest-full": Plan(
        "ChestX-ray14: test areas under the ROC curve",
        (*_published("chestxray14", *[4] * 14), _delta_m("chestxray14", 2)),
        _ROWS,
        stacked=True,
    ),
}
"""The paper's."""


def of_records(records: Iterable[Mapping[str, Any]], title: str) -> Plan:
    """The table of any benchmark: every task, what else is measured, and Δm.

    Args:
        records: Of runs of the benchmark, with the same tasks.
        title: The benchmark's, in print.
    """
    record = next(iter(records))
    name = record["benchmark"]["name"]
    measures = []
    for task in record["tasks"]:
        unit = f" ({task['unit']})" if task["unit"] not in ("", "%") else ""
        heading, single = f"{task['symbol']}{unit}", Cell.number(task["single_task"])
        digits = None if single == MISSING else single.decimals
        measures.append(Measure(name, task["name"], heading, digits, task["higher_is_better"]))
    for figure in record["best"]["test_figures"]:
        if not tells_calibration(figure):
            measures.append(Measure(name, figure, figure, 2, higher_is_better=True))
    if record["best"].get("test_delta_m") is not None:
        measures.append(_delta_m(name, 2))
    return Plan(f"{title}: test {record.get('metric', 'results')}", tuple(measures), _ROWS)
