from __future__ import annotations

import pytest
import torch

from models import GraphError, PaddedGraphs, pad
from models.graphs import as_groups
from tests.models.molecules import random_molecules


def graphs(**changes: torch.Tensor) -> PaddedGraphs:
    parts = {
        "nodes": torch.zeros(2, 3, 11),
        "edges": torch.zeros(2, 3, 3, 5),
        "atoms": torch.tensor([3, 1]),
    }
    return PaddedGraphs(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": torch.zeros(3, 11)}, r"nodes must be \[B, n, p\].*\[3, 11\]"),
        ({"nodes": torch.zeros(0, 3, 11)}, "not empty"),
        ({"edges": torch.zeros(2, 3, 4, 5)}, r"edges must be \[2, 3, 3, q\].*\[2, 3, 4, 5\]"),
        ({"edges": torch.zeros(2, 3, 3)}, "edges must be"),
        ({"atoms": torch.tensor([3])}, r"atoms must be \[2\]"),
        ({"atoms": torch.tensor([3.0, 1.0])}, "atoms must be int64, got torch.float32"),
        ({"atoms": torch.tensor([3, 0])}, r"atoms\[1\] is 0.*1 ... 3"),
        ({"atoms": torch.tensor([4, 1])}, r"atoms\[0\] is 4"),
        ({"edges": torch.zeros(2, 3, 3, 5).double()}, "share a floating-point dtype"),
        ({"nodes": torch.zeros(2, 3, 11).long()}, "share a floating-point dtype"),
        ({"atoms": torch.zeros(2, dtype=torch.int64, device="meta")}, "one device"),
    ],
)
def test_ill_fitting_tensors_are_named(changes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graphs(**changes)


def test_masks() -> None:
    group = graphs()
    assert group.real().tolist() == [[True, True, True], [True, False, False]]
    pairs = group.pairs()
    assert torch.equal(pairs[0], ~torch.eye(3, dtype=torch.bool))
    assert not pairs[1].any()


def test_to_converts_features_but_not_counts() -> None:
    group = graphs().to("meta", torch.float64)
    assert group.nodes.dtype == group.edges.dtype == torch.float64
    assert group.atoms.dtype == torch.int64
    assert {t.device.type for t in (group.nodes, group.edges, group.atoms)} == {"meta"}


def test_pad_puts_every_molecule_first_and_zeros_behind() -> None:
    molecules = random_molecules([2, 4, 1], seed=0)
    group = pad(molecules, size=5)
    assert (len(group), group.size, group.atoms.tolist()) == (3, 5, [2, 4, 1])
    for k, (nodes, edges) in enumerate(molecules):
        n = len(nodes)
        assert torch.equal(group.nodes[k, :n], nodes)
        assert torch.equal(group.edges[k, :n, :n], edges)
        assert not group.nodes[k, n:].any()
        assert not group.edges[k, n:].any()
        assert not group.edges[k, :, n:].any()


def test_pad_rejects() -> None:
    a, b = random_molecules([2, 4], seed=0)
    with pytest.raises(GraphError, match="no molecules"):
        pad([])
    with pytest.raises(GraphError, match="molecule 1 has 4 atoms, more than size=3"):
        pad([a, b], size=3)
    with pytest.raises(GraphError, match="nodes of molecule 1"):
        pad([a, (b[0][:, :7], b[1])])
    with pytest.raises(GraphError, match="edges of molecule 1"):
        pad([a, (b[0], b[1][:3])])


def test_no_groups() -> None:
    with pytest.raises(GraphError, match="no molecules"):
        as_groups([])
