from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.methods import options
from experiments.qm9.benchmark import Qm9
from experiments.run import Run
from experiments.settings import Settings
from tests.figure_fixtures import undrawn

__all__ = ["undrawn"]

TABLES = Path(__file__).resolve().parent.parent / "fixtures" / "qm9"
SMALL = {"molecules": 34, "validation": 3, "test": 3, "data": str(TABLES)}
NETWORK = {"width": 8, "edge_width": 8, "passes": 2, "groups": 2}


@pytest.fixture(autouse=True)
def _no_real_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))


@pytest.fixture
def make() -> Callable[..., Run]:
    """A run on a few dozen real molecules: options of the method, then of the trainer."""

    def made(
        method: str = "ls",
        chosen: dict[str, Any] | None = None,
        benchmark: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Run:
        given = {"epochs": 3, "batch_size": 5, "device": "cpu", "learning_rate": 3e-3, "seed": 1}
        return Run(
            Qm9(**{**SMALL, **NETWORK, **(benchmark or {})}),
            method,
            options(method, chosen or {}),
            Settings(**{**given, **settings}),
        )

    return made
