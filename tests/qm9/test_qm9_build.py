"""From tables to arrays."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import DataError
from experiments.qm9 import BENCHMARK, Molecules, bonds, qm9pack_source
from experiments.qm9.targets import BENCHMARK_COLUMNS, PROPERTIES

Edit = Callable[[list[str], list[list[str]]], None]


def row_of(molecules: Molecules, number: int) -> Molecules:
    """The single molecule gdb_<number>."""
    return molecules.select(np.flatnonzero(molecules.idx == number - 1))


def bond_list(molecule: Molecules) -> list[tuple[int, int, int]]:
    columns = (molecule.bond_i, molecule.bond_j, molecule.bond_order)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def test_every_row_is_there_in_order(sample: Molecules, tables: Path) -> None:
    numbers = []
    for name in qm9pack_source.TABLES:
        with (tables / name).open(newline="") as file:
            numbers += [int(row["Index"]) for row in csv.DictReader(file)]
    assert (sample.idx + 1).tolist() == numbers
    assert len(sample) == 42


def test_hand_written_graphs(sample: Molecules) -> None:
    assert bond_list(row_of(sample, 1)) == [(0, k, 0) for k in range(1, 5)]
    assert bond_list(row_of(sample, 4)) == [(0, 1, 2), (0, 3, 0), (1, 2, 0)]  # acetylene
    hydrogen_cyanide = row_of(sample, 5)
    assert bond_list(hydrogen_cyanide) == [(0, 1, 2), (0, 2, 0)]
    assert hydrogen_cyanide.x.tolist() == [
        [0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 0, 7, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
    ]
    assert sorted(bond_list(row_of(sample, 6))) == [(0, 1, 1), (0, 2, 0), (0, 3, 0)]  # formaldehyde


def test_exceptions_use_their_table(sample: Molecules) -> None:
    listed = np.flatnonzero(sample.status)
    assert (sample.idx[listed] + 1).tolist() == [23, 24, 133857]
    for number in (23, 24, 133857):
        multiple = {b for b in bond_list(row_of(sample, number)) if b[2] > 0}
        assert multiple == set(bonds.EXCEPTIONS[number].multiple)
    assert len(bonds.EXCEPTIONS) == 8


def test_hydrogen_has_one_bond_and_contacts_are_marked(sample: Molecules) -> None:
    start = np.cumsum(sample.n_atoms, dtype=np.int64) - sample.n_atoms
    offset = np.repeat(start, sample.n_bonds)
    ends = np.concatenate([offset + sample.bond_i, offset + sample.bond_j])
    degree = np.bincount(ends, minlength=len(sample.z))
    assert (degree[sample.z == 1] == 1).all()
    assert sample.bond_ghost.sum() == 1
    molecule = row_of(sample, 1150)
    (contact,) = np.flatnonzero(molecule.bond_ghost)
    i, j = int(molecule.bond_i[contact]), int(molecule.bond_j[contact])
    assert (molecule.z[[i, j]] == 6).all()
    assert np.linalg.norm(molecule.pos[i] - molecule.pos[j]) == pytest.approx(1.806, abs=2e-3)


def test_units(sample: Molecules) -> None:
    """Methane's atomisation energies in kcal/mol, as in the public processed table, and in eV."""
    methane = row_of(sample, 1).y[0].astype(float)
    kcal = np.array([-395.999594594, -398.643290011, -401.014646522, -372.471772148])
    assert methane[12:16] == pytest.approx(kcal * 0.04336414, rel=1e-7)
    electronvolt = [-17.172182, -17.286823, -17.389656, -16.151918]
    assert methane[12:16] == pytest.approx(electronvolt, abs=2e-6)
    assert methane[[0, 1, 5, 11]] == pytest.approx([0.0, 13.21, 35.3641, 6.469])
    assert methane[2:5] == pytest.approx(np.array([-0.3877, 0.1171, 0.5048]) * 27.211386246)
    assert methane[7] == pytest.approx(-40.47893 * 27.211386246, rel=1e-7)
    assert methane[16:] == pytest.approx([157.7118, 157.70997, 157.70699])
    carbon_tetrafluoride = row_of(sample, 184)  # the only check of fluorine's reference energy
    assert carbon_tetrafluoride.y[0, 12] == pytest.approx(-20.767, abs=5e-4)


def test_benchmark_targets(sample: Molecules) -> None:
    names = ["mu", "alpha", "homo", "lumo", "r2", "zpve", "u0", "u", "h", "g", "cv"]
    assert [p.name for p in BENCHMARK] == names
    assert BENCHMARK_COLUMNS == (0, 1, 2, 3, 5, 6, 12, 13, 14, 15, 11)
    assert len(PROPERTIES) == 19
    in_mev = [k for k, p in enumerate(BENCHMARK) if p.reported_unit == "meV"]
    assert in_mev == [2, 3, 5, 6, 7, 8, 9]
    for k, one in enumerate(BENCHMARK):
        assert one.reported_factor == (1000.0 if k in in_mev else 1.0)
    assert np.array_equal(sample.targets[:, 10], sample.y[:, 11])
    assert np.array_equal(sample.targets[:, 6], sample.y[:, 12])


def test_positions_have_four_decimals(sample: Molecules) -> None:
    assert sample.pos[0].tolist() == np.float32([-0.0127, 1.0858, 0.0080]).tolist()


def test_select_keeps_each_molecule(sample: Molecules) -> None:
    chosen = sample.select([7, 0, 7])
    assert chosen.idx.tolist() == sample.idx[[7, 0, 7]].tolist()
    for k, row in enumerate([7, 0, 7]):
        one, same = chosen.select([k]), sample.select([row])
        for name, array in one.arrays().items():
            assert np.array_equal(array, getattr(same, name)), name
    with pytest.raises(DataError, match="rows must lie"):
        sample.select([42])


def test_progress_counts_every_molecule(tables: Path) -> None:
    done: list[int] = []
    qm9pack_source.build(tables, done.append)
    assert sum(done) == 42


def test_the_package_is_located_and_not_imported() -> None:
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("qm9pack is not installed")
    assert qm9pack_source.is_folder_of_tables(qm9pack_source.installed_folder())
    assert "qm9pack" not in sys.modules


def test_package_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install qm9pack.*--data PATH.*--source pyg"):
        qm9pack_source.installed_folder()


def edit_table(folder: Path, edit: Edit) -> None:
    path = folder / "qm9_part1.csv"
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    edit(header, rows)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def set_cell(column: str, value: str, row: int = 0) -> Edit:
    def edit(header: list[str], rows: list[list[str]]) -> None:
        rows[row][header.index(column)] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda header, rows: header.__setitem__(2, "Smiles"), "no column SMILES"),
        (lambda header, rows: rows[3].pop(), "24 columns instead of 25"),
        (set_cell("Dipole_debye", "none"), "a number cannot be read"),
        (set_cell("Dipole_debye", "nan"), "not all finite"),
        (set_cell("Elements", "['C','H','H','H']"), "gdb_1 has 4 atoms"),
        (set_cell("Elements", "['S','H','H','H','H']"), "an element other than"),
        (set_cell("SMILES", "N"), "gdb_1: its geometry does not follow"),
        (set_cell("SMILES", "c1ccccc1"), "gdb_1: SMILES 'c1ccccc1'"),
        # a known exception with another string is not the one that was examined
        (set_cell("SMILES", "C#CC#N", row=6), "gdb_23: its geometry does not follow"),
        # bonds of the string that are no bonds of the geometry
        (set_cell("SMILES", "C1CC1OC", row=8), "gdb_41: its geometry does not follow"),
    ],
)
def test_damaged_tables(own_tables: Path, edit: Edit, message: str) -> None:
    edit_table(own_tables, edit)
    with pytest.raises(DataError, match=message):
        qm9pack_source.build(own_tables)


def test_missing_table(own_tables: Path) -> None:
    (own_tables / "qm9_part2.csv").unlink()
    with pytest.raises(DataError, match=r"qm9_part2\.csv"):
        qm9pack_source.build(own_tables)


def test_table_that_is_no_text(own_tables: Path) -> None:
    (own_tables / "qm9_part2.csv").write_bytes(b"\xff\xfe\x00" * 100)
    with pytest.raises(DataError, match=r"qm9_part2\.csv"):
        qm9pack_source.build(own_tables)
