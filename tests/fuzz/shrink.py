"""One case by its seed, and a smaller one that breaks in the same way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from tests.fuzz.broken import Broken
from tests.fuzz.check import run
from tests.fuzz.draw import Call, Case, Part, draw

__all__ = ["one", "shrunk"]


def one(seed: str) -> tuple[str, str, str] | None:
    """Seed, kind and detail of what breaks in the case of a seed, or None."""
    torch.set_num_threads(1)
    broken = _broken(draw(seed))
    return None if broken is None else (seed, broken.kind, broken.detail)


def shrunk(case: Case, kind: str, tries: int = 150) -> Case:
    """The smallest case found that breaks with the same kind."""
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(case):
            tries -= 1
            if tries <= 0:
                break
            broken = _broken(smaller)
            if broken is not None and broken.kind == kind:
                case, progress = smaller, True
                break
    return case


def _broken(case: Case) -> Broken | None:
    try:
        return run(case)
    except Exception as error:
        return Broken(f"the fuzzer itself: {type(error).__name__}", repr(error))


def _smaller(case: Case) -> Iterator[Case]:
    """One step smaller, the largest steps first."""
    for name in ("calls", "parts", "settings"):
        whole = getattr(case, name)
        for index in reversed(range(len(whole))):
            if name != "parts" or len(whole) > 1:
                yield replace(case, **{name: whole[:index] + whole[index + 1 :]})
    if case.aggregation:
        yield replace(case, aggregation=None)
        yield from (replace(case, aggregation=code) for code in _simpler(case.aggregation))
    if case.dtype != "float32":
        yield replace(case, dtype="float32")
    for name in ("parts", "calls"):
        for index, item in enumerate(getattr(case, name)):
            for other in _plainer(item):
                items = list(getattr(case, name))
                items[index] = other
                yield replace(case, **{name: tuple(items)})


def _plainer(item: Part | Call) -> Iterator[Any]:
    """With one field at its default, or with a simpler expression there."""
    for field in fields(item):
        value = getattr(item, field.name)
        if value == field.default or field.name in ("do", "seed"):
            continue
        if field.name != "head":
            yield replace(item, **{field.name: field.default})
        if isinstance(item, Part):
            yield from (replace(item, **{field.name: code}) for code in _simpler(value))
        elif field.name == "examples" and value > 2:
            yield replace(item, examples=2)


def _simpler(code: str) -> Iterator[str]:
    """Expressions with one option less."""
    tree = ast.parse(code, mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in calls:
        for keyword in list(node.keywords):
            place = node.keywords.index(keyword)
            node.keywords.remove(keyword)
            yield ast.unparse(tree)
            node.keywords.insert(place, keyword)
