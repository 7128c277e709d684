"""Which module of a package imports which, read from its files, without importing any."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One import statement's name.

    Attributes:
        by: module that imports.
        of: module of this package, or the name of another package.
        typing: whether only type checkers see it.
        local: whether it is inside a function.
    """

    by: str
    of: str
    typing: bool
    local: bool


def modules(root: Path) -> dict[str, ast.Module]:
    """Every module of the package by its dotted name, without the package's own name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts).removesuffix("__init__").removesuffix(".")
        found[name] = ast.parse(path.read_text())
    return found


def imports(package: str, trees: dict[str, ast.Module]) -> Iterator[Import]:
    """All imports of the package of that name, wherever they stand."""
    for name, tree in trees.items():
        yield from _of(package, name, tree, frozenset(trees))


@functools.cache
def _of(package: str, name: str, tree: ast.Module, names: frozenset[str]) -> list[Import]:
    return list(_within(package, name, tree, names, typing=False, local=False))


def _within(
    package: str, name: str, node: ast.AST, trees: frozenset[str], *, typing: bool, local: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for of in _names(package, name, child, trees):
                yield Import(name, of, typing, local)
            continue
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        inside = {"typing": typing or checking, "local": local or function}
        yield from _within(package, name, child, trees, **inside)


def _names(
    package: str, name: str, statement: ast.Import | ast.ImportFrom, trees: frozenset[str]
) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        assert statement.level == 0, f"{name}: imports are absolute"
        whole = [f"{statement.module}.{alias.name}" for alias in statement.names]
    else:
        whole = [alias.name for alias in statement.names]
    found = []
    for one in whole:
        first, _, inside = one.partition(".")
        if first != package:
            found.append(first)
        else:
            found.append(inside if inside in trees else inside.rpartition(".")[0])
    return found
