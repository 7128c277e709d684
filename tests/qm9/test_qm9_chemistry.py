from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import qm9
from experiments.errors import DataError
from experiments.qm9 import chemistry, qm9pack_source
from experiments.qm9.molecules import DERIVED_COLUMNS


def test_published_features_leave_five_channels_at_zero(sample: qm9.Molecules) -> None:
    assert not sample.x[:, DERIVED_COLUMNS].any()
    assert (sample.bond_order < chemistry.AROMATIC).all()


def test_rdkit_absent(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(DataError, match=r"pip install rdkit.*--features pyg"):
        qm9.load(path=tables, folder=tmp_path, features="chemistry")


def test_equals_perception_from_smiles(sample: qm9.Molecules, tables: Path) -> None:
    """RDKit reads the SMILES by another road: its own valences, charges and hydrogens."""
    chem = pytest.importorskip("rdkit.Chem")
    derived = chemistry.perceive(sample)
    filled = chemistry.apply(sample, derived)
    kinds = [chem.HybridizationType.SP, chem.HybridizationType.SP2, chem.HybridizationType.SP3]
    rows = [row for name in qm9pack_source.TABLES for row in qm9pack_source._rows(tables / name)]
    aromatic = 0
    for k, row in enumerate(rows):
        expected = chem.MolFromSmiles(row.smiles)
        molecule = filled.select([k])
        heavy = molecule.x[molecule.z > 1]
        wanted = [
            [atom.GetIsAromatic(), *(atom.GetHybridization() == kind for kind in kinds)]
            for atom in expected.GetAtoms()
        ]
        assert heavy[:, DERIVED_COLUMNS].tolist() == np.array(wanted, int).tolist(), row.smiles
        assert not molecule.x[molecule.z == 1][:, DERIVED_COLUMNS].any()
        count = sum(bond.GetIsAromatic() for bond in expected.GetBonds())
        assert (molecule.bond_order == chemistry.AROMATIC).sum() == count, row.smiles
        aromatic += count
    assert aromatic > 10
    assert np.array_equal(filled.x[:, :6], sample.x[:, :6])


def test_kept_beside_the_molecules(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdkit")
    first = qm9.load(path=tables, folder=tmp_path, features="chemistry")
    assert first.molecules.x[:, DERIVED_COLUMNS].any()
    monkeypatch.setitem(sys.modules, "rdkit", None)  # not needed any more
    again = qm9.load(path=tables, folder=tmp_path, features="chemistry")
    assert np.array_equal(again.molecules.x, first.molecules.x)
    assert np.array_equal(again.molecules.bond_order, first.molecules.bond_order)
    assert (again.features, again.sha256) == ("chemistry", first.sha256)
    plain = qm9.load(path=tables, folder=tmp_path)
    assert not plain.molecules.x[:, DERIVED_COLUMNS].any()

    (file,) = tmp_path.glob("qm9-chemistry-*.npz")
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"{file.name} is damaged.*delete it"):
        qm9.load(path=tables, folder=tmp_path, features="chemistry")


def test_features_of_other_molecules(sample: qm9.Molecules) -> None:
    derived = chemistry.Derived(np.zeros((3, 4), np.uint8), np.zeros(2, np.uint8))
    with pytest.raises(DataError, match="another set"):
        chemistry.apply(sample, derived)


def test_rejected_molecule_is_named(sample: qm9.Molecules) -> None:
    pytest.importorskip("rdkit")
    methane = sample.select([0])
    crowded = qm9.Molecules(**{**methane.arrays(), "bond_order": np.full(4, 2, np.uint8),
                               "x": methane.x + np.uint8(3)})  # fmt: skip
    with pytest.raises(DataError, match=r"gdb_1 .*--features pyg"):
        chemistry.perceive(crowded)
