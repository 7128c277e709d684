"""Half of the swap matrix: some of its cells, and whether the page tells the same."""

from __future__ import annotations

from tests.swap.axes import HEADS
from tests.swap.page import PAGE, Matrix, run

__all__ = ["PAGE", "cells", "differences", "half", "section"]


def half(which: int) -> list[str]:
    """Every second head."""
    return list(HEADS)[which::2]


def cells(heads: list[str]) -> Matrix:
    """Cells of these heads in which every two choices meet; `python -m tests.swap` runs all."""
    return run(heads, whole=False)


def section(text: str, title: str) -> str:
    """The page's part under a heading of the third level."""
    _, _, rest = text.partition(f"### {title}\n")
    return rest.split("\n#")[0]


def differences(stored: str, now: str) -> list[tuple[list[str], list[str]]]:
    """Rows of a table that differ in a cell that was run."""
    rows = zip(marks(stored), marks(now), strict=True)
    return [
        (old, new)
        for old, new in rows
        if any(b not in (a, "–") for a, b in zip(old, new, strict=True))
    ]


def marks(text: str) -> list[list[str]]:
    """The rows of a table, without numbers of reasons: they depend on the other heads."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[("no" if cell.isdigit() else cell) for cell in row] for row in rows]
