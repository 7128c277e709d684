"""Every second head with every scheme, and with every prior, estimator and aggregation."""

from __future__ import annotations

import pytest
from swapping import PAGE, cells, differences, half, section

from tests.swap.page import Matrix, render

pytest.importorskip("torchjd")
pytest.importorskip("laplace")

HEADS = half(1)


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return cells(HEADS)


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
