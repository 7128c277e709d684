"""A table as data: columns, rows of numbers, notes. How it looks is :mod:`.render`'s business."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A number, or words.

    Attributes:
        mean: The number; None when there is none.
        std: Its standard deviation over seeds; None when there is one seed, or none is known.
        decimals: Digits after the point.
        bold: Whether it stands out.
        text: What stands there when there is no number.
        signed: Whether a plus is written.
    """

    mean: float | None = None
    std: float | None = None
    decimals: int = 2
    bold: bool = False
    text: str = ""
    signed: bool = False

    @classmethod
    def number(cls, value: float | None) -> Cell:
        """About four significant digits, without exponents for everyday sizes."""
        if value is None:
            return MISSING
        size, limits = abs(value), (1.0, 10.0, 100.0, 1000.0)
        decimals = 4 - sum(size >= limit for limit in limits)
        if 0 < size < 1e-3:
            decimals = min(3 - math.floor(math.log10(size)), 12)
        return cls(value, decimals=decimals)

    @classmethod
    def spread(cls, values: Sequence[float], decimals: int) -> Cell:
        """Mean and sample standard deviation; a dash for none."""
        if not values:
            return MISSING
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, decimals)

    def parts(self) -> tuple[str, ...]:
        """Mean and deviation as text; empty when there is no number."""
        if self.mean is None:
            return ()
        if not math.isfinite(self.mean):
            return (str(self.mean),)
        sign = "+" if self.signed else ""
        mean = f"{self.mean:{sign},.{self.decimals}f}"
        return (mean,) if self.std is None else (mean, f"{self.std:,.{self.decimals}f}")

    def __str__(self) -> str:
        """The number with its deviation, or the words."""
        return " ± ".join(self.parts()) or self.text


MISSING = Cell(text="–")
NOT_RUN = Cell(text="not run")


@dataclass(frozen=True)
class Column:
    """Head of a column.

    Attributes:
        title: Its name.
        group: What neighbours with the same group have in common, written above them.
        words: Whether it holds words, which begin at the left, and no numbers.
    """

    title: str
    group: str = ""
    words: bool = False


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        label: What it is about.
        cells: One for each column.
        rule: Whether a line is drawn above it.
    """

    label: str
    cells: tuple[Cell, ...]
    rule: bool = False


@dataclass(frozen=True)
class Table:
    """A table."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def highlight(
    rows: Sequence[Row], column: int, better: Callable[[float, float], bool], skip: Sequence[str]
) -> list[Row]:
    """The best number of a column in bold.

    Args:
        rows: The rows.
        column: Which.
        better: Whether its first argument is better than its second.
        skip: Labels that do not compete.
    """
    best: int | None = None
    for index, row in enumerate(rows):
        value = row.cells[column].mean
        if value is None or row.label in skip or not math.isfinite(value):
            continue
        reference = None if best is None else rows[best].cells[column].mean
        if reference is None or better(value, reference):
            best = index
    if best is None:
        return list(rows)
    cells = list(rows[best].cells)
    cells[column] = dataclasses.replace(cells[column], bold=True)
    changed = dataclasses.replace(rows[best], cells=tuple(cells))
    return [changed if index == best else row for index, row in enumerate(rows)]
