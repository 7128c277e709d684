"""A short run of the fuzzer; `python -m tests.fuzz --cases 20000` is a long one."""

from __future__ import annotations

import pytest

from tests.fuzz.check import run
from tests.fuzz.draw import draw
from tests.fuzz.found import FOUND
from tests.fuzz.shrink import shrunk
from tests.torch_fixtures import one_thread

__all__ = ["one_thread"]

CASES, PIECES = 120, 8


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_life_breaks_an_invariant(piece: int) -> None:
    for index in range(piece, CASES, PIECES):
        case = draw(f"ci:{index}")
        broken = run(case)
        assert broken is None, f"{broken.kind}\n{broken.detail}\n{shrunk(case, broken.kind)}"


@pytest.mark.parametrize("name", FOUND)
def test_what_broke_once_holds(name: str) -> None:
    broken = run(FOUND[name])
    assert broken is None, f"{broken.kind}\n{broken.detail}"
