"""Which atoms are bonded, and how often: distance rule for the first, SMILES for the second.

Connectivity follows the rule implied by PyTorch Geometric's processed set: two atoms are bonded
when they are closer than the sum of their radii plus a tolerance. The order of a bond between heavy
atoms is then read from the SMILES, whose k-th atom is the k-th heavy atom of the geometry;
everything else is single. Bonds that the rule finds and the SMILES lacks (1,398 long C-C contacts
in the whole set) are kept as single and marked.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DataError

_RADIUS: Final = np.zeros(10)
_RADIUS[[1, 6, 7, 8, 9]] = 0.23, 0.68, 0.68, 0.68, 0.64  # Angstrom
_TOLERANCE: Final = 0.45

_SYMBOL: Final = np.zeros(10, dtype="S1")
_SYMBOL[[6, 7, 8, 9]] = b"C", b"N", b"O", b"F"


class Exceptional(NamedTuple):
    """A molecule whose geometry does not follow its SMILES.

    Attributes:
        smiles: The string in the table.
        reason: Why it cannot be used.
        multiple: (atom, atom, order) of every multiple bond, atoms as in the geometry; order 1
            double, 2 triple.
    """

    smiles: str
    reason: str
    multiple: tuple[tuple[int, int, int], ...]


_ATOM_ORDER = "atoms are listed in another order than in the SMILES"
_REARRANGED = "the relaxed geometry has two bonds exchanged (SMILES bonds at 2.1 Angstrom)"

# Keyed by the number of the molecule in GDB-9 (``gdb_23`` and so on, counted from 1). The multiple
# bonds were perceived from the geometry with RDKit's ``rdDetermineBonds``, which succeeds for all
# eight.
EXCEPTIONS: Final[dict[int, Exceptional]] = {
    23: Exceptional("C#CC#C", _ATOM_ORDER, ((0, 3, 2), (1, 2, 2))),
    24: Exceptional("C#CC#N", _ATOM_ORDER, ((0, 2, 2), (1, 4, 2))),
    486: Exceptional("N#CC#CC#N", _ATOM_ORDER, ((0, 1, 2), (2, 4, 2), (3, 5, 2))),
    52466: Exceptional("CC#CC#CC#CC=O", _ATOM_ORDER, ((0, 1, 1), (3, 4, 2), (5, 6, 2), (7, 8, 2))),
    59818: Exceptional("CC(C)N=COCC#C", _ATOM_ORDER, ((0, 11, 1), (17, 18, 2))),
    133487: Exceptional("CC#CCCC(F)(F)F", _ATOM_ORDER, ((0, 11, 2),)),
    133857: Exceptional("CC1C2C3C4=CCC13C24", _REARRANGED, ((4, 5, 1),)),
    133859: Exceptional("CN1C2C3C4=CCC13C24", _REARRANGED, ((4, 5, 1),)),
}


class BondTable(NamedTuple):
    """Bonds of several molecules, sorted by molecule, then by first and second atom.

    Attributes:
        molecule: [B] which molecule (position in the batch).
        first: [B] local number of the lower atom.
        second: [B] local number of the higher atom.
        order: [B] 0 single, 1 double, 2 triple.
        beyond_smiles: [B] True where only the distance rule knows the bond.
        exceptional: [M] True where the SMILES did not fit and the table of exceptions was used.
    """

    molecule: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    order: NDArray[np.uint8]
    beyond_smiles: NDArray[np.bool_]
    exceptional: NDArray[np.bool_]


_STRIDE: Final = 256  # more than any atom count that fits the one-byte layout


def _key(
    molecule: NDArray[np.int64], i: NDArray[np.int64], j: NDArray[np.int64]
) -> NDArray[np.int64]:
    """One sortable number per bond."""
    return (molecule * _STRIDE + np.minimum(i, j)) * _STRIDE + np.maximum(i, j)


def _connected(
    z: NDArray[np.uint8], positions: NDArray[np.float64], n_atoms: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sorted keys of all pairs within bonding distance; one dense pass per molecule size."""
    start = np.cumsum(n_atoms) - n_atoms
    keys = []
    for n in np.unique(n_atoms):
        members = np.flatnonzero(n_atoms == n)
        atoms = start[members, None] + np.arange(n)
        xyz, radius = positions[atoms], _RADIUS[z[atoms]]
        i, j = np.triu_indices(int(n), k=1)
        gap = xyz[:, i] - xyz[:, j]
        reach = radius[:, i] + radius[:, j] + _TOLERANCE
        where, pair = np.nonzero(np.einsum("mpk,mpk->mp", gap, gap) < reach**2)
        keys.append(_key(members[where], i[pair], j[pair]))
    merged = np.concatenate(keys)
    merged.sort()
    return merged


def find_bonds(
    z: NDArray[np.uint8],
    positions: NDArray[np.float64],
    n_atoms: NDArray[np.int64],
    smiles: list[str],
    index: NDArray[np.int64],
) -> BondTable:
    """Bonds of a batch of molecules.

    Args:
        z: [A] atomic numbers, molecule after molecule.
        positions: [A, 3] in Angstrom.
        n_atoms: [M] atoms per molecule.
        smiles: One string per molecule.
        index: [M] number of each molecule in GDB-9, counted from 1.

    Raises:
        DataError: A SMILES is outside the dialect, or a molecule does not fit its SMILES and is no
            known exception.
    """
    keys = _connected(z, positions, n_atoms)
    order = np.zeros(len(keys), np.uint8)
    known = np.zeros(len(keys), bool)

    owner = np.repeat(np.arange(len(n_atoms)), n_atoms)
    start = np.cumsum(n_atoms) - n_atoms
    local = np.arange(len(z)) - np.repeat(start, n_atoms)
    heavy = np.flatnonzero(z > 1)
    n_heavy = np.bincount(owner[heavy], minlength=len(n_atoms))
    symbols = _SYMBOL[z[heavy]].tobytes().decode("ascii")
    heavy_start = np.cumsum(n_heavy) - n_heavy

    claims: list[tuple[int, int, int, int]] = []
    misfit = np.zeros(len(n_atoms), bool)
    for m, text in enumerate(smiles):
        try:
            graph = parse_smiles(text)
        except ValueError as error:
            raise DataError(f"molecule gdb_{index[m]}: {error}") from error
        begin = int(heavy_start[m])
        if graph.elements != symbols[begin : begin + int(n_heavy[m])]:
            misfit[m] = True
        else:
            claims += [(m, begin + a, begin + b, kind) for a, b, kind in graph.bonds]

    if claims:
        m, a, b, kind = np.array(claims).T
        wanted = _key(m, local[heavy[a]], local[heavy[b]])
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        absent = keys[found] != wanted
        misfit[m[absent]] = True
        use = ~misfit[m]
        order[found[use]] = kind[use]
        known[found[use]] = True

    molecule, pair = np.divmod(keys, _STRIDE * _STRIDE)
    for row in np.flatnonzero(misfit):
        _apply_exception(int(row), int(index[row]), smiles[row], keys, order)
        known[molecule == row] = True
    first, second = np.divmod(pair, _STRIDE)
    hydrogen = (z[start[molecule] + first] == 1) | (z[start[molecule] + second] == 1)
    return BondTable(molecule, first, second, order, ~known & ~hydrogen, misfit)


def _apply_exception(
    row: int, number: int, text: str, keys: NDArray[np.int64], order: NDArray[np.uint8]
) -> None:
    """Write the listed multiple bonds of an exceptional molecule."""
    exception = EXCEPTIONS.get(number)
    if exception is None or exception.smiles != text:
        raise DataError(
            f"molecule gdb_{number}: its geometry does not follow its SMILES {text!r}, and it is "
            "none of the "
            f"{len(EXCEPTIONS)} known exceptions; the tables are not those of qm9pack 1.0.3"
        )
    for i, j, kind in exception.multiple:
        key = (row * _STRIDE + i) * _STRIDE + j
        position = int(np.searchsorted(keys, key))
        if position == len(keys) or keys[position] != key:
            raise DataError(
                f"molecule gdb_{number}: atoms {i} and {j} should be bonded and are not"
            )
        order[position] = kind


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


def parse_smiles(smiles: str) -> HeavyGraph:
    """Read one string of QM9's small dialect.

    Elements are C, N, O and F (bare or in brackets with hydrogens and a charge), bonds ``-``, ``=``
    and ``#``; there are branches and one-digit ring closures, and no aromatic lower-case letters.

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
