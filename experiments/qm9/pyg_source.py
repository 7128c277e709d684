"""Take QM9 from PyTorch Geometric, for those who have it (it brings its own download)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DataError
from experiments.files.progress import Tick, quiet
from experiments.qm9.molecules import Molecules, node_features
from models.files import only_data, reason

_STEP = 2048


def build(root: Path, progress: Tick = quiet) -> Molecules:
    """All molecules of ``torch_geometric.datasets.QM9(root)``.

    Raises:
        DataError: PyTorch Geometric is missing, or its data set cannot be read or downloaded;
            also where a file there holds more than data.
    """
    try:
        from torch_geometric.datasets import QM9
    except ImportError as error:
        raise DataError(
            "source 'pyg' needs PyTorch Geometric; install it (pip install torch-geometric), or "
            "leave --source out"
        ) from error
    try:
        # Genuine files name one class. PyTorch Geometric allows more of them, and reads again
        # without protection what it may not read.
        with only_data(*_classes()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graphs = cast("Iterable[Any]", QM9(str(root)))
        return convert(graphs, progress)
    except DataError:
        raise
    # The download, the archive and the pickle inside fail in many ways; all mean the same to the
    # user.
    except Exception as error:
        raise DataError(
            f"PyTorch Geometric cannot provide QM9 in {root} ({reason(error)}); "
            "put its files there, or leave --source out to use the package qm9pack"
        ) from error


def _classes() -> list[type]:
    """The class that genuine files name."""
    kind = getattr(sys.modules.get("torch_geometric.data"), "Data", None)
    return [kind] if isinstance(kind, type) else []


def convert(graphs: Iterable[Any], progress: Tick = quiet) -> Molecules:
    """Turn graphs into flat arrays.

    Args:
        graphs: Objects with tensors ``z`` [n], ``pos`` [n, 3], ``edge_index`` [2, E], ``edge_attr``
            [E, 4], ``y`` [1, 19] and a number ``idx``; every bond in both directions.
        progress: Called with the number of molecules that were just finished.

    Raises:
        DataError: A graph is not of this form, or its bonds are marked aromatic (they must be
            Kekule).
    """
    z: list[NDArray[Any]] = []
    pos: list[NDArray[Any]] = []
    y: list[NDArray[Any]] = []
    idx: list[int] = []
    bonds: list[NDArray[Any]] = []
    for graph in graphs:
        idx.append(int(graph.idx))
        z.append(graph.z.numpy())
        pos.append(graph.pos.numpy())
        y.append(graph.y.numpy().reshape(-1))
        bonds.append(_bonds(graph.edge_index.numpy(), graph.edge_attr.numpy(), idx[-1]))
        if len(pos[-1]) != len(z[-1]) or y[-1].shape != (19,):
            raise DataError(
                f"graph {idx[-1]} has {len(z[-1])} atoms, positions {list(pos[-1].shape)} and "
                "targets "
                f"{list(graph.y.shape)}; this is not the QM9 of PyTorch Geometric"
            )
        if len(idx) % _STEP == 0:
            progress(_STEP)
    if not idx:
        raise DataError("the PyTorch Geometric data set is empty")
    progress(len(idx) % _STEP)

    n_atoms = np.array([len(a) for a in z], np.uint8)
    n_bonds = np.array([len(b) for b in bonds], np.uint8)
    numbers = np.concatenate(z).astype(np.uint8)
    table = np.concatenate(bonds).astype(np.uint8)
    bond_i, bond_j, order = (np.ascontiguousarray(column) for column in table.T)
    return Molecules(
        idx=np.array(idx, np.int32),
        n_atoms=n_atoms,
        n_bonds=n_bonds,
        status=np.zeros(len(idx), np.uint8),
        z=numbers,
        pos=np.concatenate(pos).astype(np.float32),
        x=node_features(numbers, n_atoms, n_bonds, bond_i, bond_j),
        bond_i=bond_i,
        bond_j=bond_j,
        bond_order=order,
        bond_ghost=np.zeros(len(table), np.uint8),
        y=np.stack(y).astype(np.float32),
    )


def _bonds(edges: NDArray[Any], kinds: NDArray[Any], idx: int) -> NDArray[Any]:
    """Rows (i, j, order) with i < j, sorted."""
    if edges.shape[0] != 2 or kinds.shape != (edges.shape[1], 4):
        raise DataError(
            f"graph {idx}: edge_index {list(edges.shape)} and edge_attr {list(kinds.shape)} do not "
            "match"
        )
    forward, backward = edges[0] < edges[1], edges[0] > edges[1]
    if {*map(tuple, edges[:, forward].T)} != {*map(tuple, edges[::-1, backward].T)}:
        raise DataError(f"graph {idx}: bonds must be listed in both directions")
    order = kinds[forward].argmax(axis=1)
    if (order == 3).any():
        raise DataError(f"graph {idx} has aromatic bonds; the public QM9 has Kekule bonds only")
    rows = np.column_stack([edges[0, forward], edges[1, forward], order])
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]
