from __future__ import annotations

import pytest

from experiments.qm9.bonds import parse_smiles


def ring(k: int) -> list[tuple[int, int, int]]:
    """A ring of three from atom ``k``, in the order in which its bonds are closed."""
    return [(k, k + 1, 0), (k + 1, k + 2, 0), (k, k + 2, 0)]


@pytest.mark.parametrize(
    ("text", "elements", "bonds"),
    [
        ("C", "C", []),
        ("CC#N", "CCN", [(0, 1, 0), (1, 2, 2)]),
        ("CC(=O)N", "CCON", [(0, 1, 0), (1, 2, 1), (1, 3, 0)]),
        ("C1CC1", "CCC", [(0, 1, 0), (1, 2, 0), (0, 2, 0)]),
        ("C1=CC=1", "CCC", [(0, 1, 1), (1, 2, 0), (0, 2, 1)]),
        ("C=1CC1", "CCC", [(0, 1, 0), (1, 2, 0), (0, 2, 1)]),
        ("[NH3+]C([O-])-F", "NCOF", [(0, 1, 0), (1, 2, 0), (1, 3, 0)]),
        ("C(C(F)N)O", "CCFNO", [(0, 1, 0), (1, 2, 0), (1, 3, 0), (0, 4, 0)]),
        # a digit may be used again once its ring is closed
        ("C1CC1O1CC1", "CCCOCC", [*ring(0), (2, 3, 0), *ring(3)]),
    ],
)  # fmt: skip
def test_parse(text: str, elements: str, bonds: list[tuple[int, int, int]]) -> None:
    assert parse_smiles(text) == (elements, bonds)


@pytest.mark.parametrize("text", ["", "c1ccccc1", "CX", "C1CC", "C(C", "CC)", "C%10C", "C.C"])
def test_outside_the_dialect(text: str) -> None:
    with pytest.raises(ValueError, match="SMILES"):
        parse_smiles(text)
