"""Half of the swap matrix: its cells, and whether the page tells the same."""

from __future__ import annotations

from tests.swap.axes import HEADS
from tests.swap.page import PAGE, Matrix, run

__all__ = ["PAGE", "cells", "half", "marks", "section"]


def half(which: int) -> list[str]:
    """Every second head."""
    return list(HEADS)[which::2]


def cells(heads: list[str]) -> Matrix:
    """All cells of these heads; warnings of small samples are no matter here."""
    return run(heads)


def section(text: str, title: str) -> str:
    """The page's part under a heading of the third level."""
    _, _, rest = text.partition(f"### {title}\n")
    return rest.split("\n#")[0]


def marks(text: str) -> list[list[str]]:
    """The rows of a table, without numbers of reasons: they depend on the other heads."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[("no" if cell.isdigit() else cell) for cell in row] for row in rows]
