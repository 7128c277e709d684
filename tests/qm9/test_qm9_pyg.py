"""PyTorch Geometric as a source, through a small stand-in with its interface."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import qm9
from experiments.errors import DataError
from experiments.qm9 import pyg_source


def graphs_of(molecules: qm9.Molecules) -> list[Any]:
    """The graphs that PyTorch Geometric would hold, in its own order of edges."""
    graphs = []
    for k in range(len(molecules)):
        one = molecules.select([k])
        i, j = (torch.from_numpy(b.astype(np.int64)) for b in (one.bond_i, one.bond_j))
        edges = torch.stack([torch.cat([i, j]), torch.cat([j, i])])
        kinds = torch.from_numpy(one.bond_order.astype(np.int64)).repeat(2)
        order = (edges[0] * len(one.z) + edges[1]).argsort()
        graphs.append(
            types.SimpleNamespace(
                x=torch.from_numpy(one.x).float(),
                z=torch.from_numpy(one.z.astype(np.int64)),
                pos=torch.from_numpy(one.pos),
                edge_index=edges[:, order],
                edge_attr=torch.nn.functional.one_hot(kinds[order], 4).float(),
                y=torch.from_numpy(one.y),
                idx=torch.tensor([int(one.idx[0])]),
            )
        )
    return graphs


def test_round_trip(sample: qm9.Molecules) -> None:
    back = pyg_source.convert(graphs_of(sample))
    for name, array in back.arrays().items():
        if name not in ("status", "bond_ghost"):  # not known there
            assert array.dtype == getattr(sample, name).dtype
            assert np.array_equal(array, getattr(sample, name)), name


def test_real_data_objects(sample: qm9.Molecules) -> None:
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(**vars(graph)) for graph in graphs_of(sample)[:5]]
    assert np.array_equal(pyg_source.convert(graphs).x, sample.select(range(5)).x)


def test_load(sample: qm9.Molecules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = []

    def fake(root: str) -> list[Any]:
        roots.append(root)
        return graphs_of(sample)

    module = types.ModuleType("torch_geometric.datasets")
    module.QM9 = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_geometric", types.ModuleType("torch_geometric"))
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", module)
    for _ in range(2):
        data = qm9.load("pyg", path=tmp_path / "root", folder=tmp_path / "data")
        assert data.source == "pyg"
        assert np.array_equal(data.molecules.y, sample.y)
    assert roots == [str(tmp_path / "root")]  # the second time from the built file


def test_package_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", None)
    with pytest.raises(DataError, match="pip install torch-geometric"):
        pyg_source.build(tmp_path)


def test_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(root: str) -> list[Any]:
        raise OSError("HTTP Error 403: Forbidden")

    module = types.ModuleType("torch_geometric.datasets")
    module.QM9 = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_geometric", types.ModuleType("torch_geometric"))
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", module)
    with pytest.raises(DataError, match=r"403.*qm9pack"):
        pyg_source.build(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", torch.zeros(1, 12), r"targets \[1, 12\]"),
        ("pos", torch.zeros(3, 3), "positions"),
        ("edge_attr", torch.zeros(8, 3), "do not match"),
        ("edge_attr", torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(8, 1), "aromatic"),
        ("edge_index", torch.tensor([[0] * 4 + [1] * 4, [1, 2, 3, 4, 0, 2, 3, 4]]), "both"),
    ],
)
def test_other_graphs(sample: qm9.Molecules, name: str, value: torch.Tensor, message: str) -> None:
    graphs = graphs_of(sample.select([0]))
    setattr(graphs[0], name, value)
    with pytest.raises(DataError, match=message):
        pyg_source.convert(graphs)


def test_no_graphs() -> None:
    with pytest.raises(DataError, match="empty"):
        pyg_source.convert([])
