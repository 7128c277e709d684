"""Decoded images go into a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchvision")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BAYESAGG_DATA", str(folder))
    return folder
