"""Fixtures for tests of which figures come out and where; how they look is tested elsewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

__all__ = ["plain_fonts", "undrawn"]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and their files written, but nothing is laid out: a second for each."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    def save(self: Figure, file: Any, **settings: Any) -> None:
        if hasattr(file, "write"):
            file.write(b"a figure")
        else:
            Path(file).write_bytes(b"a figure")

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def plain_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """PDFs with glyphs as drawings: to embed a font takes as long as to draw the figure."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from experiments.report.style import STYLE

    monkeypatch.setitem(STYLE, "pdf.fonttype", 3)
