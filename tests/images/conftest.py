"""Decoded images go into a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.figure_fixtures import undrawn

__all__ = ["cache", "undrawn"]

pytest.importorskip("torchvision")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BAYESAGG_DATA", str(folder))
    return folder
