"""The package is read in one direction: each stage imports those before it, and none after."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bayesagg_pyro
from tests.library.import_walk import imports, modules

PACKAGE = Path(bayesagg_pyro.__file__).parent
#: Stages in the order in which they are read; those in one row do not know each other.
ORDER = [
    ["errors", "_modes", "_pieces", "_torch_distribution", "quadrature"],
    ["_settings", "_state", "targets", "linalg"],
    ["posteriors", "_optimise"],
    ["validity"],
    ["heads"],
    ["predictive", "inference", "gradients"],
    ["priors", "aggregation"],
    ["engine"],
    ["diagnostics"],
]
LEVEL = {stage: level for level, row in enumerate(ORDER) for stage in row}
#: Optional packages, each imported by one module and there when it is needed.
OPTIONAL = {"arviz", "gpytorch", "jinja2", "laplace", "matplotlib", "scipy", "torchjd"}


def stage(module: str) -> str:
    """What a module belongs to; all at the top that is no stage of its own is the engine's."""
    first = module.partition(".")[0]
    return first if first in LEVEL else "engine"


def faults(trees: dict[str, ast.Module]) -> list[str]:
    """Everything that is against the order, as sentences."""
    found, places = [], {}
    before: dict[str, set[str]] = {name: set() for name in trees}
    for by, of, typing, local in imports("bayesagg_pyro", trees):
        if of not in trees:
            if local and of not in OPTIONAL:
                found.append(f"{by} imports {of} inside a function")
            if of in OPTIONAL and not typing:
                places.setdefault(of, set()).add(by)
            continue
        if local:
            found.append(f"{by} imports {of} inside a function")
        mine, theirs = stage(by), stage(of)
        if mine != theirs and LEVEL[theirs] >= LEVEL[mine] and by:
            found.append(f"{by} imports {of}, which comes after it")
        if by and of and not (typing and mine == theirs):
            before[by].add(of)
    found += [
        f"{package} is imported by {sorted(by)}: one will do"
        for package, by in places.items()
        if len(by) > 1
    ]
    try:
        list(TopologicalSorter(before).static_order())
    except CycleError as error:
        found.append(f"a circle of imports: {' -> '.join(error.args[1])}")
    return found


TREES = modules(PACKAGE)


def test_numbers_know_nothing_of_figures_and_pages() -> None:
    report = "diagnostics._report"
    known = [
        i
        for i in imports("bayesagg_pyro", TREES)
        if i.of.startswith(report) and not i.by.startswith(report)
    ]
    assert {i.by for i in known} == {"diagnostics"}


def test_every_stage_imports_those_before_it_alone() -> None:
    assert {stage(name) for name in TREES if name} == set(LEVEL)
    assert not faults(TREES)


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("heads._head", "from bayesagg_pyro.priors import Policy", "comes after it"),
        ("heads._head", "from bayesagg_pyro import predictive", "comes after it"),
        ("predictive._predict", "from bayesagg_pyro.inference import Laplace", "comes after it"),
        (
            "posteriors._family",
            "if TYPE_CHECKING:\n    from bayesagg_pyro.heads import Head",
            "comes after it",
        ),
        ("heads._head", "def f():\n    from bayesagg_pyro import errors", "inside a function"),
        ("heads._head", "def f():\n    import json", "inside a function"),
        ("heads._head", "def f():\n    import gpytorch", "one will do"),
        ("heads._linear", "from bayesagg_pyro.heads._head import Head", "a circle"),
    ],
)
def test_a_wrong_import_is_found(module: str, line: str, fault: str) -> None:
    changed = ast.Module([*TREES[module].body, *ast.parse(line).body], [])
    assert any(fault in found for found in faults({**TREES, module: changed}))
