from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.qm9 import Molecules, qm9pack_source

TABLES = Path(__file__).resolve().parent.parent / "fixtures" / "qm9"


@pytest.fixture(scope="session")
def tables() -> Path:
    return TABLES


@pytest.fixture
def own_tables(tmp_path: Path) -> Path:
    """A copy of the tables that a test may damage."""
    folder = tmp_path / "tables"
    shutil.copytree(TABLES, folder)
    return folder


@pytest.fixture(scope="session")
def sample() -> Molecules:
    return qm9pack_source.build(TABLES)


@pytest.fixture(autouse=True)
def _no_real_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))
