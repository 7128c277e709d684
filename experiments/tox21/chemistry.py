"""What RDKit makes of a structure, kept in files: fingerprint, scaffold, graph of heavy atoms.

Molecules that RDKit cannot read (in the release eight, with aluminium of impossible valence) are
left out, and told. Graphs have no coordinates: a pair of atoms has the kind of its bond and, in
place of the distance in space, the number of bonds between the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.benchmark import Batch
from experiments.errors import DataError
from experiments.files import cache
from experiments.qm9.batching import cuts
from experiments.rows import Rows
from models.graphs import PaddedGraphs


@dataclass(frozen=True)
class Described:
    """The M molecules that could be read.

    Attributes:
        rows: [M] int64, which of the molecules they are.
        fingerprints: [M, bits] float32, 0 or 1: Morgan's, the parts of the molecule within
            ``radius`` bonds of each atom (Rogers and Hahn, 2010,
            https://doi.org/10.1021/ci100050t).
        scaffolds: [M] int64, alike for molecules of the same rings and links between them (Bemis
            and Murcko, 1996, https://doi.org/10.1021/jm9602928); all molecules without rings have
            one scaffold.
    """

    rows: Tensor
    fingerprints: Tensor
    scaffolds: Tensor


def describe(smiles: Sequence[str], radius: int, bits: int, folder: Path) -> Described:
    """Describe molecules, or read what was kept of them.

    Args:
        smiles: N structures.
        radius: Of the fingerprint.
        bits: Of the fingerprint.
        folder: Where to keep it.

    Raises:
        DataError: RDKit is not installed, or can read none of them; the file cannot be written, or
            is damaged.
    """
    digest = hashlib.sha256("\n".join(smiles).encode()).hexdigest()
    file = folder / f"tox21-morgan{radius}-{bits}-{digest[:12]}.npz"
    if not file.exists():
        chem = rdkit()
        cache.require_writable(folder)
        cache.write(file, _described(chem, smiles, radius, bits), {"source": "rdkit"})
    kept, _ = cache.read(file)
    fingerprints = np.unpackbits(kept["fingerprints"], axis=1, count=bits)
    return Described(
        torch.from_numpy(kept["rows"]),
        torch.from_numpy(fingerprints).float(),
        torch.from_numpy(kept["scaffolds"]),
    )


def rdkit() -> Any:
    """The package.

    Raises:
        DataError: It is not installed.
    """
    try:
        from rdkit import Chem
    except ImportError as error:
        raise DataError(
            "structures are read by the package rdkit, which is not installed: pip install rdkit"
        ) from error
    return Chem


def molecules(chem: Any, smiles: Sequence[str]) -> list[Any]:
    """Each as RDKit's object; None where it cannot be read."""
    from rdkit import RDLogger, rdBase

    assert RDLogger is not None  # imported for its side effect: BlockLogs needs the loggers
    with rdBase.BlockLogs():
        return [chem.MolFromSmiles(text) for text in smiles]


def _described(chem: Any, smiles: Sequence[str], radius: int, bits: int) -> dict[str, Any]:
    from rdkit.Chem import rdFingerprintGenerator
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    found = {row: one for row, one in enumerate(molecules(chem, smiles)) if one is not None}
    if not found:
        raise DataError(f"RDKit can read none of {len(smiles):,} structures, such as {smiles[0]!r}")
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=bits)
    numbers: dict[str, int] = {}
    return {
        "rows": np.array(list(found)),
        "fingerprints": np.stack(
            [np.packbits(morgan.GetFingerprintAsNumPy(one)) for one in found.values()]
        ),
        "scaffolds": np.array(
            [
                numbers.setdefault(MurckoScaffoldSmiles(mol=one), len(numbers))
                for one in found.values()
            ]
        ),
    }


_ELEMENTS: Final = ("C", "N", "O", "S", "F", "Cl", "Br", "P", "I")
_BONDS: Final = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_HYBRIDS: Final = ("SP", "SP2", "SP3")

NODE_FEATURES: Final = len(_ELEMENTS) + 1 + len(_HYBRIDS) + 5
"""Element (or another), hybridisation, aromatic, in a ring, charge above and below 0, hydrogens."""
EDGE_FEATURES: Final = len(_BONDS) + 1
"""Kind of the bond, and bonds between the two atoms."""

_FAR: Final = 20
"""Of atoms with more bonds between them, or none at all."""

# Bond code (0 none, 1 and on as in _BONDS; 5 any other) -> features; the last is for the distance.
_TABLE: Final = torch.cat([torch.zeros(1, 5), torch.eye(4, 5), torch.zeros(1, 5)])


class Graphs:
    """M molecules on a device, one behind the other.

    Args:
        arrays: ``sizes`` [M], ``nodes`` [sum of sizes, NODE_FEATURES], and ``bonds`` and
            ``distances`` [sum of squared sizes].
        device: Where to keep them.
    """

    def __init__(self, arrays: dict[str, Any], device: torch.device) -> None:
        found = {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}
        self.sizes = found["sizes"].long()
        self._nodes, self._bonds = found["nodes"], found["bonds"]
        self._distances, self._table = found["distances"], _TABLE.to(device)
        self._atom = self.sizes.cumsum(0) - self.sizes
        square = self.sizes.square()
        self._pair = square.cumsum(0) - square

    def gather(self, rows: Tensor, n: int) -> PaddedGraphs:
        """Molecules [B], of at most n atoms each."""
        size = self.sizes[rows]
        place = torch.arange(n, device=rows.device).minimum(size[:, None] - 1)  # [B, n]
        pair = place[:, :, None] * size[:, None, None] + place[:, None]
        pair += self._pair[rows][:, None, None]
        edges = functional.embedding(self._bonds[pair].int(), self._table)
        edges[..., -1] = self._distances[pair]
        nodes = self._nodes[self._atom[rows][:, None] + place].float()
        return PaddedGraphs(nodes=nodes, edges=edges, atoms=size)


class GraphRows(Rows):
    """A part of the set; the molecules of a batch are sorted by size.

    Args:
        whole: All molecules.
        rows: [R], of the part.
        targets: ``{head: [R, ...]}``.
        groups: A batch is cut into at most so many groups of molecules of similar size.
    """

    def __init__(
        self, whole: Graphs, rows: Tensor, targets: dict[str, Tensor], groups: int
    ) -> None:
        super().__init__(rows.to(whole.sizes.device), targets)
        self._whole, self._groups = whole, groups
        self._sizes = whole.sizes[self.inputs].cpu()

    def _batch(self, rows: Tensor) -> Batch:
        sizes, place = self._sizes[rows].sort(stable=True)
        found = super()._batch(rows[place])
        inputs = [
            self._whole.gather(found.inputs[begin:end], int(sizes[end - 1]))
            for begin, end in cuts(sizes.tolist(), self._groups)
        ]
        return Batch(inputs, found.targets)


def graphs(smiles: Sequence[str], folder: Path, device: torch.device) -> Graphs:
    """The graphs of structures that RDKit can read, or what was kept of them.

    Raises:
        DataError: RDKit is not installed; the file cannot be written, or is damaged.
    """
    digest = hashlib.sha256("\n".join(smiles).encode()).hexdigest()
    file = folder / f"tox21-graphs-{digest[:12]}.npz"
    if not file.exists():
        chem = rdkit()
        cache.require_writable(folder)
        cache.write(file, _built(chem, smiles), {"source": "rdkit"})
    return Graphs(cache.read(file)[0], device)


def _built(chem: Any, smiles: Sequence[str]) -> dict[str, Any]:
    found = molecules(chem, smiles)
    distances = [chem.GetDistanceMatrix(one).clip(max=_FAR).astype(np.uint8) for one in found]
    return {
        "sizes": np.array([one.GetNumAtoms() for one in found], np.int32),
        "nodes": np.array([_node(atom) for one in found for atom in one.GetAtoms()], np.uint8),
        "bonds": np.concatenate([_bonds(one).reshape(-1) for one in found]),
        "distances": np.concatenate([matrix.reshape(-1) for matrix in distances]),
    }


def _node(atom: Any) -> list[int]:
    symbol, hybrid = atom.GetSymbol(), str(atom.GetHybridization())
    return [
        *(int(symbol == element) for element in _ELEMENTS),
        int(symbol not in _ELEMENTS),
        *(int(hybrid == name) for name in _HYBRIDS),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
        int(atom.GetFormalCharge() > 0),
        int(atom.GetFormalCharge() < 0),
        atom.GetTotalNumHs(),
    ]


def _bonds(molecule: Any) -> Any:
    """[n, n] uint8."""
    found = np.zeros((molecule.GetNumAtoms(),) * 2, np.uint8)
    for bond in molecule.GetBonds():
        kind = str(bond.GetBondType())
        code = _BONDS.index(kind) + 1 if kind in _BONDS else len(_BONDS) + 1
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        found[ends] = found[ends[::-1]] = code
    return found
