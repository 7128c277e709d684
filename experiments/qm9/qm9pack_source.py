"""Read QM9 from the tables of the PyPI package ``qm9pack``.

The package is located, never imported (its import needs modules that current installations lack).
All 130,831 molecules of the benchmark are there, in the order of the public processed set.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DataError
from experiments.files.progress import Tick, quiet
from experiments.qm9.bonds import BondTable, find_bonds
from experiments.qm9.molecules import Molecules, node_features
from experiments.qm9.targets import ELEMENTS, RAW_COLUMNS, property_matrix

TABLES: Final = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
REMEDY: Final = (
    "install it (pip install qm9pack), or give a data file built earlier (--data PATH), "
    "or use PyTorch Geometric's own download (--source pyg)"
)

_CHUNK: Final = (
    4096  # molecules handled at once: bounds memory, and gives the progress bar its steps
)
_DROP: Final = str.maketrans("", "", "[]', ")
_KEEP_COMMAS: Final = str.maketrans("", "", "[] ")
_ATOMIC_NUMBER: Final = np.zeros(256, np.uint8)
_ATOMIC_NUMBER[[ord(c) for c in "HCNOF"]] = ELEMENTS


def installed_folder() -> Path:
    """Folder with the tables of the installed ``qm9pack``.

    Raises:
        DataError: The package is not installed, or its tables are not where they should be.
    """
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"the Python package qm9pack, which holds the molecules, is not installed; {REMEDY}"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    if not is_folder_of_tables(folder):
        raise DataError(
            f"qm9pack is installed, but {folder} lacks {', '.join(TABLES)}; reinstall it, or "
            f"{REMEDY}"
        )
    return folder


def is_folder_of_tables(folder: Path) -> bool:
    """Whether the three tables lie in ``folder``."""
    return all((folder / name).is_file() for name in TABLES)


class _Chunk(NamedTuple):
    number: NDArray[np.int64]
    n_atoms: NDArray[np.int64]
    z: NDArray[np.uint8]
    positions: NDArray[np.float64]
    raw: NDArray[np.float64]
    bonds: BondTable


class _Row(NamedTuple):
    number: str
    smiles: str
    elements: str
    positions: str
    raw: list[str]


def _rows(path: Path) -> Iterator[_Row]:
    """Rows of one table, reduced to the columns in use."""
    needed = ("Index", "SMILES", "Elements", "XYZ_Ang", *RAW_COLUMNS)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        missing = [name for name in needed if name not in header]
        if missing:
            raise DataError(
                f"{path}: no column {', '.join(missing)}; this is not a table of qm9pack"
            )
        number, smiles, elements, positions, *raw = (header.index(name) for name in needed)
        for row in reader:
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} columns instead of {len(header)}"
                )
            yield _Row(
                row[number], row[smiles], row[elements], row[positions], [row[k] for k in raw]
            )


def _read_chunk(rows: list[_Row], path: Path) -> _Chunk:
    """Arrays of up to ``_CHUNK`` rows."""
    elements = [row.elements.translate(_DROP).replace(",", "") for row in rows]
    n_atoms = np.array([len(e) for e in elements])
    numbers = [row.positions.translate(_KEEP_COMMAS) for row in rows]
    for row, n, text in zip(rows, n_atoms, numbers, strict=True):
        if text.count(",") + 1 != 3 * n or n == 0 or n > 255:
            raise DataError(
                f"{path}: molecule gdb_{row.number} has {n} atoms, but not three times as many "
                "coordinates"
            )
    z = _ATOMIC_NUMBER[np.frombuffer("".join(elements).encode("latin-1", "replace"), np.uint8)]
    if not z.all():
        raise DataError(f"{path}: an element other than H, C, N, O and F near gdb_{rows[0].number}")
    try:
        number = np.array([int(row.number) for row in rows], np.int64)
        positions = np.array([*map(float, ",".join(numbers).split(","))]).reshape(-1, 3)
        raw = np.array([[*map(float, row.raw)] for row in rows])
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: a number cannot be read near gdb_{rows[0].number}: {error}"
        ) from error
    bonds = find_bonds(z, positions, n_atoms, [row.smiles for row in rows], number)
    return _Chunk(number, n_atoms, z, positions, raw, bonds)


def _chunks(folder: Path, progress: Tick) -> Iterator[_Chunk]:
    for name in TABLES:
        path, pending = folder / name, []
        try:
            for row in _rows(path):
                pending.append(row)
                if len(pending) == _CHUNK:
                    yield _read_chunk(pending, path)
                    progress(len(pending))
                    pending = []
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} cannot be read: {error}; reinstall qm9pack") from error
        if pending:
            yield _read_chunk(pending, path)
            progress(len(pending))


def build(folder: Path, progress: Tick = quiet) -> Molecules:
    """All molecules of the tables in ``folder``.

    Args:
        folder: Holds the three files named in ``TABLES``.
        progress: Called with the number of molecules that were just finished.

    Raises:
        DataError: A table is missing, damaged, or not one of qm9pack's.
    """
    if not is_folder_of_tables(folder):
        raise DataError(f"{folder} does not hold {', '.join(TABLES)}; {REMEDY}")
    chunks = list(_chunks(folder, progress))
    if not chunks:
        raise DataError(f"the tables in {folder} hold no molecule; reinstall qm9pack")
    n_atoms = np.concatenate([c.n_atoms for c in chunks])
    z = np.concatenate([c.z for c in chunks])
    n_bonds = np.concatenate(
        [np.bincount(c.bonds.molecule, minlength=len(c.number)) for c in chunks]
    ).astype(np.uint8)
    bond_i = np.concatenate([c.bonds.first for c in chunks]).astype(np.uint8)
    bond_j = np.concatenate([c.bonds.second for c in chunks]).astype(np.uint8)
    owner = np.repeat(np.arange(len(n_atoms)), n_atoms)
    counts = np.stack(
        [np.bincount(owner[z == e], minlength=len(n_atoms)) for e in ELEMENTS], axis=1
    )
    small = n_atoms.astype(np.uint8)
    positions = np.concatenate([c.positions for c in chunks])
    return Molecules(
        idx=(np.concatenate([c.number for c in chunks]) - 1).astype(np.int32),
        n_atoms=small,
        n_bonds=n_bonds,
        status=np.concatenate([c.bonds.exceptional for c in chunks]).astype(np.uint8),
        z=z,
        # The public set went through a file format with four decimals.
        pos=np.round(positions, 4).astype(np.float32),
        x=node_features(z, small, n_bonds, bond_i, bond_j),
        bond_i=bond_i,
        bond_j=bond_j,
        bond_order=np.concatenate([c.bonds.order for c in chunks]),
        bond_ghost=np.concatenate([c.bonds.beyond_smiles for c in chunks]).astype(np.uint8),
        y=property_matrix(np.concatenate([c.raw for c in chunks]), counts),
    )
