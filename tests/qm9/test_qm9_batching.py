from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments import qm9
from experiments.errors import SettingsError
from experiments.qm9.batching import cuts
from models.graphs import PaddedGraphs


@pytest.fixture(scope="module")
def padded(sample: qm9.Molecules) -> qm9.PaddedMolecules:
    marked = torch.arange(len(sample)).float()[:, None].expand(-1, 11)
    return qm9.PaddedMolecules(sample, marked)  # a target tells which molecule it belongs to


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unpack(groups: list[PaddedGraphs]) -> list[tuple[Tensor, Tensor]]:
    """Nodes and edges of each molecule, padding taken off."""
    return [
        (group.nodes[k, :n], group.edges[k, :n, :n])
        for group in groups
        for k, n in enumerate(group.atoms.tolist())
    ]


def written_out(molecules: qm9.Molecules, row: int) -> tuple[Tensor, Tensor]:
    """Nodes and edges of one molecule, one entry at a time."""
    one = molecules.select([row])
    n = len(one.z)
    edges = torch.zeros(n, n, 5)
    for i, j in itertools.product(range(n), repeat=2):
        edges[i, j, 4] = float(np.linalg.norm(one.pos[i].astype(float) - one.pos[j]))
    for i, j, order in zip(one.bond_i, one.bond_j, one.bond_order, strict=True):
        edges[i, j, order] = edges[j, i, order] = 1.0
    return torch.from_numpy(one.x).float(), edges


def test_equals_molecules_written_out(sample: qm9.Molecules, padded: qm9.PaddedMolecules) -> None:
    groups, targets, rows = padded.batch(torch.randperm(42, generator=seeded()), groups=4)
    assert 1 < len(groups) <= 4
    assert sorted(rows.tolist()) == list(range(42))
    assert torch.equal(targets[:, 0], rows.float())
    for (nodes, edges), row in zip(unpack(groups), rows.tolist(), strict=True):
        wanted_nodes, wanted_edges = written_out(sample, row)
        assert torch.equal(nodes, wanted_nodes)
        assert torch.equal(edges[..., :4], wanted_edges[..., :4])
        assert torch.allclose(edges[..., 4], wanted_edges[..., 4], atol=1e-5)


def test_aromatic_channel(sample: qm9.Molecules) -> None:
    pytest.importorskip("rdkit")
    from experiments.qm9 import chemistry

    filled = chemistry.apply(sample, chemistry.perceive(sample))
    groups, _, rows = qm9.PaddedMolecules(filled, torch.zeros(42, 11)).batch(torch.arange(42))
    for (nodes, edges), row in zip(unpack(groups), rows.tolist(), strict=True):
        wanted_nodes, wanted_edges = written_out(filled, row)
        assert torch.equal(nodes, wanted_nodes)
        assert torch.equal(edges[..., :4], wanted_edges[..., :4])
    assert sum(float(group.edges[..., 3].sum()) for group in groups) > 0


def test_shapes_order_and_padding(padded: qm9.PaddedMolecules) -> None:
    groups, targets, _ = padded.batch(torch.arange(42), groups=3)
    assert targets.shape == (42, 11)
    sizes = torch.cat([g.atoms for g in groups])
    assert torch.equal(sizes, sizes.sort().values)
    for group in groups:
        count, n, width = group.nodes.shape
        assert width == 11
        assert group.edges.shape == (count, n, n, 5)
        assert group.nodes.dtype == group.edges.dtype == torch.float32
        assert group.atoms.dtype == torch.int64
        assert int(group.atoms.max()) == n  # no wider than its largest molecule
        padding = torch.arange(n) >= group.atoms[:, None]
        assert not group.nodes[padding].any()
        assert not group.edges[padding].any()
        assert not group.edges.transpose(1, 2)[padding].any()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9).map(sorted), groups=st.integers(1, 4)
)
def test_cuts_are_the_best(sizes: list[int], groups: int) -> None:
    def cost(cuts: list[tuple[int, int]]) -> int:
        return sum((end - begin) * sizes[end - 1] ** 2 for begin, end in cuts)

    every = []
    for extra in range(min(groups, len(sizes))):
        for inner in itertools.combinations(range(1, len(sizes)), extra):
            edges = [0, *inner, len(sizes)]
            every.append(list(itertools.pairwise(edges)))
    found = cuts(sizes, groups)
    assert [0, *(end for _, end in found)] == [*(begin for begin, _ in found), len(sizes)]
    assert len(found) <= groups
    assert all(begin < end for begin, end in found)
    assert cost(found) == min(map(cost, every))


def epoch(
    part: qm9.MoleculeRows, size: int, generator: torch.Generator | None = None
) -> list[list[int]]:
    """Which molecules each batch holds, and in which order."""
    return [y["properties"][:, 0].long().tolist() for _, y in part.batches(size, generator)]


def test_an_epoch_holds_each_molecule_once(padded: qm9.PaddedMolecules) -> None:
    rows = torch.arange(3, 40)
    part = qm9.MoleculeRows(padded, rows)
    seen = epoch(part, 10, seeded())
    assert [len(batch) for batch in seen] == [10, 10, 10, 7]
    assert part.steps(10) == 4
    assert sorted(itertools.chain(*seen)) == rows.tolist()


def test_batches_are_random_sets_not_size_classes(padded: qm9.PaddedMolecules) -> None:
    order = torch.randperm(42, generator=seeded(5)).tolist()
    seen = epoch(qm9.MoleculeRows(padded, torch.arange(42)), 7, seeded(5))
    assert [set(batch) for batch in seen] == [set(order[k : k + 7]) for k in range(0, 42, 7)]


def test_the_generator_alone_decides(padded: qm9.PaddedMolecules) -> None:
    generator, before = seeded(1), torch.random.get_rng_state()
    part = qm9.MoleculeRows(padded, torch.arange(42))
    first = epoch(part, 10, generator)
    state = generator.get_state()
    second = epoch(part, 10, generator)
    assert first != second
    generator.set_state(state)
    assert epoch(part, 10, generator) == second
    assert torch.equal(torch.random.get_rng_state(), before)


def test_prepared_parts(sample: qm9.Molecules, tmp_path: Path) -> None:
    data = qm9.QM9(sample, "qm9pack", "pyg", "", tmp_path)
    train = qm9.prepare(data, seed=0).train
    sizes = [g.atoms for groups, _ in train.batches(6) for g in groups]
    assert torch.equal(torch.cat(sizes), torch.cat(sizes).sort().values)  # little padding
    shuffled = torch.cat([y["properties"] for _, y in train.batches(6, seeded())])
    wanted = train.targets["properties"]
    assert torch.equal(shuffled.sort(0).values, wanted.sort(0).values)


def test_targets_of_another_set(sample: qm9.Molecules) -> None:
    with pytest.raises(SettingsError, match=r"\[42, T\]"):
        qm9.PaddedMolecules(sample, torch.zeros(41, 11))
