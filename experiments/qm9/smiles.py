"""Heavy atoms and bonds of the SMILES strings that occur in QM9.

QM9's strings are a small dialect: elements C, N, O and F (bare or in brackets with hydrogens and a
charge), bonds ``-``, ``=`` and ``#``, branches, and one-digit ring closures; never an aromatic
lower-case letter.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BRACKET = re.compile(r"\[([CNOF])[^\]]*\]")
_TOKENS = re.compile(r"(?:\[[CNOF][^\]]*\]|[CNOF=#()1-9-])*")
_ORDER = {"-": 0, "=": 1, "#": 2}
_NO_ELEMENT = str.maketrans("", "", "-=#()123456789")


class HeavyGraph(NamedTuple):
    """What a SMILES string says about the heavy atoms.

    Attributes:
        elements: One letter per heavy atom, in the string's order.
        bonds: (atom, atom, order) with 0 for single, 1 for double and 2 for triple.
    """

    elements: str
    bonds: list[tuple[int, int, int]]


def parse(smiles: str) -> HeavyGraph:
    """Read one string.

    Raises:
        ValueError: A character outside the dialect, a ring that is not closed, or unbalanced
            branches.
    """
    text = _BRACKET.sub(r"\1", smiles) if "[" in smiles else smiles
    bonds: list[tuple[int, int, int]] = []
    branches: list[int] = []
    open_rings: dict[str, tuple[int, int]] = {}
    atoms, previous, order = 0, -1, 0
    for token in text:
        if token in "CNOF":
            if previous >= 0:
                bonds.append((previous, atoms, order))
            previous, order = atoms, 0
            atoms += 1
        elif token in _ORDER:
            order = _ORDER[token]
        elif token == "(":
            branches.append(previous)
        elif token == ")":
            if not branches:
                raise ValueError(f"SMILES {smiles!r}: branch closed that was never opened")
            previous = branches.pop()
        elif token in open_rings:
            other, other_order = open_rings.pop(token)
            # The order may be written at either end of the ring bond.
            bonds.append((other, previous, max(order, other_order)))
            order = 0
        elif token in "123456789":
            open_rings[token] = (previous, order)
            order = 0
        else:
            raise ValueError(_not_understood(smiles))
    if not atoms:
        raise ValueError(_not_understood(smiles))
    if open_rings or branches:
        raise ValueError(f"SMILES {smiles!r}: a ring or a branch is left open")
    return HeavyGraph(text.translate(_NO_ELEMENT), bonds)


def _not_understood(smiles: str) -> str:
    understood = _TOKENS.match(smiles)
    assert understood is not None
    return f"SMILES {smiles!r}: not understood from position {understood.end()}"
