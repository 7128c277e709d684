"""What RDKit makes of a structure: a fingerprint and a scaffold; kept in a file, built in seconds.

Molecules that RDKit cannot read (in the release eight, with aluminium of impossible valence) are
left out, and told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.files import cache


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
