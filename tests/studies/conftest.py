"""Every study once, at its smallest setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.report import style
from experiments.studies.study import Context, conduct
from experiments.tables.render import terminal

pytest.importorskip("sklearn")


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """Folder and results of a study by name; run on first use."""
    done: dict[str, tuple[Path, dict[str, Any]]] = {}

    def find(name: str) -> tuple[Path, dict[str, Any]]:
        if name not in done:
            folder = tmp_path_factory.mktemp("study") / name
            told: list[str] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(style.STYLE, "pdf.fonttype", 3)  # 42 takes as long as all else
                outcome = conduct(name, Context(folder, quick=True, told=told.append))
            assert told
            console = Console(record=True, width=120)
            for table in outcome.tables.values():
                console.print(terminal(table.shown()))
            assert console.export_text().strip()
            done[name] = folder, json.loads((folder / "results.json").read_text())
        return done[name]

    return find
