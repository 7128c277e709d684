"""Heavy atoms and bonds of the SMILES strings that occur in QM9.

QM9's strings are a small dialect: elements C, N, O and F (bare or in brackets with hydrogens and a
charge), bonds ``-``, ``=`` and ``#``, branches, and one-digit ring closures; never an aromatic
lower-case letter.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"\[([CNOF])[^\]]*\]|([CNOF])|([-=#])|([()])|([1-9])")
_ORDER = {"-": 0, "=": 1, "#": 2}


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
    elements: list[str] = []
    bonds: list[tuple[int, int, int]] = []
    branches: list[int] = []
    open_rings: dict[str, tuple[int, int]] = {}
    previous, order, end = -1, 0, 0
    for token in _TOKEN.finditer(smiles):
        if token.start() != end:
            break
        end = token.end()
        kind = token.lastindex
        text = token.group()
        if kind is not None and kind <= 2:
            if previous >= 0:
                bonds.append((previous, len(elements), order))
            previous, order = len(elements), 0
            elements.append(token.group(kind))
        elif kind == 3:
            order = _ORDER[text]
        elif text == "(":
            branches.append(previous)
        elif text == ")":
            if not branches:
                raise ValueError(f"SMILES {smiles!r}: branch closed that was never opened")
            previous = branches.pop()
        elif text in open_rings:
            other, other_order = open_rings.pop(text)
            # The order may be written at either end of the ring bond.
            bonds.append((other, previous, max(order, other_order)))
            order = 0
        else:
            open_rings[text] = (previous, order)
            order = 0
    if end != len(smiles) or not elements:
        raise ValueError(f"SMILES {smiles!r}: not understood from position {end}")
    if open_rings or branches:
        raise ValueError(f"SMILES {smiles!r}: a ring or a branch is left open")
    return HeavyGraph("".join(elements), bonds)
