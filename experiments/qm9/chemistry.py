"""The node and bond features that need a chemistry toolkit: aromatic, sp, sp2, sp3, aromatic bond.

The public processed set leaves them at zero (it is read without perception), so published benchmark
numbers do without them. Here they are perceived by RDKit from the bonds: heavy atoms with their
hydrogens as counts, formal charges from the valence, contacts beyond the valence of both carbons
left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DataError
from experiments.files.progress import Tick, quiet
from experiments.qm9.molecules import DERIVED_COLUMNS, Molecules

AROMATIC: Final = 3
"""Code of an aromatic bond in ``Molecules.bond_order``."""

# (atomic number, sum of bond orders) -> formal charge. A nitrogen of five, written N(=O)=O, stays
# neutral here: RDKit itself separates the charges of a nitro group.
_CHARGES: Final = {(7, 4): 1, (7, 2): -1, (8, 1): -1, (8, 3): 1, (6, 3): -1}

_STEP: Final = 2048


@dataclasses.dataclass(frozen=True)
class Derived:
    """What the toolkit adds.

    Attributes:
        columns: [A, 4] uint8: aromatic, sp, sp2, sp3; zero for hydrogen.
        bond_order: [B] uint8: 0 single, 1 double, 2 triple, 3 aromatic.
    """

    columns: NDArray[np.uint8]
    bond_order: NDArray[np.uint8]


def apply(molecules: Molecules, derived: Derived) -> Molecules:
    """``molecules`` with the derived features filled in.

    Raises:
        DataError: The two do not belong together.
    """
    if len(derived.columns) != len(molecules.z) or len(derived.bond_order) != len(
        molecules.bond_order
    ):
        raise DataError(
            "the chemistry features belong to another set of molecules; delete their file to "
            "build them again"
        )
    x = molecules.x.copy()
    x[:, DERIVED_COLUMNS] = derived.columns
    return dataclasses.replace(molecules, x=x, bond_order=derived.bond_order)


def perceive(molecules: Molecules, progress: Tick = quiet) -> Derived:
    """Perceive aromaticity and hybridisation of every molecule; about 20 s for the whole set.

    Args:
        molecules: With Kekule bonds.
        progress: Called with the number of molecules that were just finished.

    Raises:
        DataError: RDKit is not installed, or it rejects a molecule.
    """
    try:
        from rdkit import Chem, RDLogger, rdBase
    except ImportError as error:
        raise DataError(
            "features 'chemistry' need the package rdkit; install it (pip install rdkit), "
            "or use the benchmark's own features (--features pyg)"
        ) from error
    assert RDLogger is not None  # imported for its side effect: BlockLogs needs the loggers
    perception = _Perception(Chem, molecules)
    with rdBase.BlockLogs():
        for row in range(len(molecules)):
            perception.add(row)
            if (row + 1) % _STEP == 0:
                progress(_STEP)
    progress(len(molecules) % _STEP)
    return Derived(perception.columns, perception.bond_order)


class _Perception:
    """State of one pass over the molecules."""

    def __init__(self, chem: Any, molecules: Molecules) -> None:
        self._chem = chem
        self._molecules = molecules
        self._bond_types = [chem.BondType.SINGLE, chem.BondType.DOUBLE, chem.BondType.TRIPLE]
        hybridisation = chem.HybridizationType
        self._column = {hybridisation.SP: 1, hybridisation.SP2: 2, hybridisation.SP3: 3}
        self.columns = np.zeros((len(molecules.z), 4), np.uint8)
        self.bond_order = molecules.bond_order.copy()
        if (self.bond_order >= len(self._bond_types)).any():
            raise DataError(
                "the bonds are not Kekule bonds any more; perceive from the original set"
            )

        wide = molecules.n_atoms.astype(np.int64)
        self._atom_ends = np.cumsum(wide)
        self._bond_ends = np.cumsum(molecules.n_bonds, dtype=np.int64)
        offset = np.repeat(self._atom_ends - wide, molecules.n_bonds)
        first, second = offset + molecules.bond_i, offset + molecules.bond_j
        z, multiplicity = molecules.z, molecules.bond_order + 1

        def valence(bonds: NDArray[np.bool_]) -> NDArray[np.float64]:
            weight = np.where(bonds, multiplicity, 0)
            ends = np.concatenate([first, second])
            return np.bincount(ends, np.tile(weight, 2), len(z)).astype(np.float64)

        everything = valence(np.ones(len(first), bool))
        crowded = (z == 6) & (everything > 4)
        contact = (self.bond_order == 0) & crowded[first] & crowded[second]
        settled = valence(~contact)
        self._charge = np.zeros(len(z), np.int8)
        for (element, total), charge in _CHARGES.items():
            self._charge[(z == element) & (settled == total)] = charge
        self._skeleton = ~contact & (z[first] > 1) & (z[second] > 1)

    def add(self, row: int) -> None:
        """Perceive one molecule and write its features."""
        chem, data = self._chem, self._molecules
        begin = int(self._atom_ends[row]) - int(data.n_atoms[row])
        atoms = range(begin, begin + int(data.n_atoms[row]))
        bonds = np.arange(int(self._bond_ends[row]) - int(data.n_bonds[row]), self._bond_ends[row])
        bonds = bonds[self._skeleton[bonds]]

        molecule = chem.RWMol()
        place: dict[int, int] = {}
        for atom in atoms:
            if data.z[atom] > 1:
                node = chem.Atom(int(data.z[atom]))
                node.SetNoImplicit(True)
                node.SetNumExplicitHs(int(data.x[atom, 10]))
                node.SetFormalCharge(int(self._charge[atom]))
                place[atom] = molecule.AddAtom(node)
        for bond in bonds.tolist():
            molecule.AddBond(
                place[begin + int(data.bond_i[bond])],
                place[begin + int(data.bond_j[bond])],
                self._bond_types[data.bond_order[bond]],
            )
        try:
            chem.SanitizeMol(molecule)
        except (ValueError, RuntimeError) as error:
            raise DataError(
                f"RDKit rejects molecule gdb_{int(data.idx[row]) + 1} ({error}); use --features pyg"
            ) from error

        for atom, index in place.items():
            node = molecule.GetAtomWithIdx(index)
            self.columns[atom, 0] = node.GetIsAromatic()
            column = self._column.get(node.GetHybridization())
            if column is not None:
                self.columns[atom, column] = 1
        # Bonds keep the order in which they were added.
        for bond, edge in zip(bonds.tolist(), molecule.GetBonds(), strict=True):
            if edge.GetIsAromatic():
                self.bond_order[bond] = AROMATIC
