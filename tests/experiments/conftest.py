from __future__ import annotations

from pathlib import Path

import pytest

from tests.figure_fixtures import plain_fonts, undrawn

__all__ = ["plain_fonts", "undrawn"]

TABLES = Path(__file__).resolve().parent.parent / "fixtures" / "qm9"


@pytest.fixture
def qm9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a tiny network on the few dozen molecules among the fixtures."""
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))
    sizes = ["--molecules", "34", "--validation", "3", "--test", "3", "--batch-size", "12"]
    network = ["--width", "8", "--edge-width", "8", "--passes", "2"]
    return ["qm9", "--data", str(TABLES), *sizes, *network, "--device", "cpu", "--no-figures"]
