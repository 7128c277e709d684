"""The flat arrays in which a set of molecules is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DataError
from experiments.qm9.targets import BENCHMARK_COLUMNS, ELEMENTS

DERIVED_COLUMNS: Final = slice(6, 10)
"""Node columns aromatic, sp, sp2, sp3: zero in the public set, filled by ``chemistry``."""

_LAYOUT: Final[dict[str, tuple[str, str]]] = {
    # field: (dtype, length)
    "idx": ("int32", "molecules"),
    "n_atoms": ("uint8", "molecules"),
    "n_bonds": ("uint8", "molecules"),
    "status": ("uint8", "molecules"),
    "z": ("uint8", "atoms"),
    "pos": ("float32", "atoms"),
    "x": ("uint8", "atoms"),
    "bond_i": ("uint8", "bonds"),
    "bond_j": ("uint8", "bonds"),
    "bond_order": ("uint8", "bonds"),
    "bond_ghost": ("uint8", "bonds"),
    "y": ("float32", "molecules"),
}
_WIDTH: Final = {"pos": 3, "x": 11, "y": 19}


@dataclass(frozen=True)
class Molecules:
    """N molecules with A atoms and B bonds in total.

    Attributes:
        idx: [N] int32, number in GDB-9 counted from 0.
        n_atoms: [N] uint8.
        n_bonds: [N] uint8.
        status: [N] uint8, 1 where bond orders come from the table of exceptions.
        z: [A] uint8 atomic numbers.
        pos: [A, 3] float32 positions in Angstrom.
        x: [A, 11] uint8: one-hot H, C, N, O, F; atomic number; aromatic, sp, sp2, sp3; hydrogens
            bonded to the atom.
        bond_i: [B] uint8, lower atom (local number).
        bond_j: [B] uint8, higher atom.
        bond_order: [B] uint8: 0 single, 1 double, 2 triple, 3 aromatic.
        bond_ghost: [B] uint8, 1 for contacts that only the distance rule calls a bond.
        y: [N, 19] float32 in the units of ``targets.PROPERTIES``.

    Raises:
        DataError: On construction, where lengths, dtypes or ranges contradict each other.
    """

    idx: NDArray[np.int32]
    n_atoms: NDArray[np.uint8]
    n_bonds: NDArray[np.uint8]
    status: NDArray[np.uint8]
    z: NDArray[np.uint8]
    pos: NDArray[np.float32]
    x: NDArray[np.uint8]
    bond_i: NDArray[np.uint8]
    bond_j: NDArray[np.uint8]
    bond_order: NDArray[np.uint8]
    bond_ghost: NDArray[np.uint8]
    y: NDArray[np.float32]

    def __post_init__(self) -> None:
        lengths = {
            "molecules": len(self.idx),
            "atoms": int(self.n_atoms.sum(dtype=np.int64)),
            "bonds": int(self.n_bonds.sum(dtype=np.int64)),
        }
        for name, (dtype, per) in _LAYOUT.items():
            array = getattr(self, name)
            shape = (lengths[per], _WIDTH[name]) if name in _WIDTH else (lengths[per],)
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise DataError(
                    f"array {name!r} is {array.dtype}{list(array.shape)}, expected "
                    f"{dtype}{list(shape)}"
                )
        if len(self.idx) == 0 or self.n_atoms.min() == 0:
            raise DataError("there is no molecule, or a molecule has no atom")
        if not np.isin(self.z, ELEMENTS).all():
            raise DataError("there are atoms other than H, C, N, O and F")
        size = np.repeat(self.n_atoms, self.n_bonds)
        if (self.bond_i >= self.bond_j).any() or (self.bond_j >= size).any():
            raise DataError("a bond points outside its molecule")
        if not (np.isfinite(self.pos).all() and np.isfinite(self.y).all()):
            raise DataError("positions or properties are not all finite")

    def __len__(self) -> int:
        return len(self.idx)

    @property
    def targets(self) -> NDArray[np.float32]:
        """[N, 11] the benchmark's properties, in the units of ``targets.BENCHMARK``."""
        return self.y[:, list(BENCHMARK_COLUMNS)]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Molecules:
        """The molecules ``rows``, in that order.

        Raises:
            DataError: A row does not exist.
        """
        chosen = np.asarray(rows, np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise DataError(
                f"rows must lie in 0 ... {len(self) - 1}, got {chosen.min()} ... {chosen.max()}"
            )
        index = {
            "molecules": chosen,
            "atoms": _ragged(self.n_atoms, chosen),
            "bonds": _ragged(self.n_bonds, chosen),
        }
        return Molecules(
            **{name: getattr(self, name)[index[per]] for name, (_, per) in _LAYOUT.items()}
        )


def _ragged(counts: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the entries of ``rows`` in a flat array with ``counts`` entries per row."""
    wide = counts.astype(np.int64)
    begin, length = (np.cumsum(wide) - wide)[rows], wide[rows]
    within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    flat: NDArray[np.int64] = within + np.repeat(begin, length)
    return flat


def node_features(
    z: NDArray[np.uint8],
    n_atoms: NDArray[np.uint8],
    n_bonds: NDArray[np.uint8],
    bond_i: NDArray[np.uint8],
    bond_j: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """The [A, 11] node features with columns aromatic, sp, sp2 and sp3 left at zero."""
    wide = n_atoms.astype(np.int64)
    begin = np.repeat(np.cumsum(wide) - wide, n_bonds)
    first, second = begin + bond_i, begin + bond_j
    hydrogens = np.bincount(first, z[second] == 1, minlength=len(z))
    hydrogens += np.bincount(second, z[first] == 1, minlength=len(z))
    x = np.zeros((len(z), 11), np.uint8)
    x[np.arange(len(z)), np.searchsorted(ELEMENTS, z)] = 1
    x[:, 5] = z
    x[:, 10] = hydrogens
    return x
