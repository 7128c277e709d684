"""The folders of `experiments` are read in one direction: none imports one that imports it."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import experiments
from tests.library.import_walk import imports, modules

TREES = modules(Path(experiments.__file__).parent)


def circle(trees: dict[str, ast.Module]) -> list[str]:
    """Folders, and modules that are in none, that import each other; types are no import."""
    before: dict[str, set[str]] = {}
    for by, of, typing, _ in imports("experiments", trees):
        mine, theirs = by.partition(".")[0], of.partition(".")[0]
        if of in trees and theirs != mine and not typing:
            before.setdefault(mine, set()).add(theirs)
    try:
        list(TopologicalSorter(before).static_order())
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_folders_import_each_other_in_one_direction() -> None:
    assert len(TREES) > 100
    assert not circle(TREES)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("scores.distributions", "from experiments.run import Run"),
        ("runner.live", "from experiments.report.write import tables"),
        ("runner.plan", "def f():\n    from experiments import comparisons"),
    ],
)
def test_a_circle_is_found(module: str, line: str) -> None:
    changed = ast.Module([*TREES[module].body, *ast.parse(line).body], [])
    assert module.partition(".")[0] in circle({**TREES, module: changed})
