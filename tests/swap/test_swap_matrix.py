"""Every head with every scheme, and with every prior, estimator and aggregation."""

from __future__ import annotations

import pytest

from tests.swap.axes import HEADS
from tests.swap.page import PAGE, Matrix, render, run


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    """Cells in which every two choices meet; `python -m tests.swap` runs all."""
    pytest.importorskip("torchjd")
    pytest.importorskip("laplace")
    return run(whole=False)


def test_what_runs_is_right(matrix) -> None:
    assert not matrix.faults()
    assert sum(cell.why is None for cell in matrix.inference.values()) > len(matrix.inference) / 3


def test_what_cannot_says_why(matrix) -> None:
    for part in (matrix.inference, matrix.moments, matrix.directions):
        for cell in part.values():
            assert cell.why is None or len(cell.why) > 30, cell


@pytest.mark.parametrize("head", HEADS)
def test_the_page_is_up_to_date(matrix, head) -> None:
    """Regenerate it with: python -m tests.swap."""
    stored, now = PAGE.read_text(encoding="utf-8"), render(matrix)
    for title in (head, f"{head}: posteriors and estimators"):
        assert section(now, title)
        assert not differences(section(stored, title), section(now, title))


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
