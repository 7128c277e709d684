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


def epoch(batches: qm9.Batches) -> list[list[int]]:
    """Which molecules each batch holds, and in which order."""
    return [targets[:, 0].long().tolist() for _, targets in batches]


def test_an_epoch_holds_each_molecule_once(padded: qm9.PaddedMolecules) -> None:
    rows = torch.arange(3, 40)
    batches = qm9.Batches(padded, rows, 10, shuffle=True, generator=seeded())
    seen = epoch(batches)
    assert [len(batch) for batch in seen] == [10, 10, 10, 7]
    assert len(batches) == 4
    assert sorted(itertools.chain(*seen)) == rows.tolist()
    cut = qm9.Batches(padded, rows, 10, drop_last=True)
    assert [len(batch) for batch in epoch(cut)] == [10] * len(cut) == [10, 10, 10]


def test_batches_are_random_sets_not_size_classes(padded: qm9.PaddedMolecules) -> None:
    generator = seeded(5)
    order = torch.randperm(42, generator=seeded(5)).tolist()
    seen = epoch(qm9.Batches(padded, None, 7, shuffle=True, generator=generator))
    assert [set(batch) for batch in seen] == [set(order[k : k + 7]) for k in range(0, 42, 7)]


def test_the_generator_alone_decides(padded: qm9.PaddedMolecules) -> None:
    generator, before = seeded(1), torch.random.get_rng_state()
    batches = qm9.Batches(padded, None, 10, shuffle=True, generator=generator)
    first = epoch(batches)
    state = generator.get_state()
    second = epoch(batches)
    assert first != second
    generator.set_state(state)
    assert epoch(batches) == second
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_shuffling_order_is_kept(padded: qm9.PaddedMolecules) -> None:
    seen = epoch(qm9.Batches(padded, torch.tensor([5, 1, 9, 7]), 2))
    assert [set(batch) for batch in seen] == [{5, 1}, {9, 7}]


def test_prepared_parts(sample: qm9.Molecules, tmp_path: Path) -> None:
    data = qm9.QM9(sample, "qm9pack", "pyg", "", tmp_path)
    run = qm9.prepare(data, seed=0)
    sizes = [g.atoms for groups, _ in run.batches("train", 6) for g in groups]
    assert torch.equal(torch.cat(sizes), torch.cat(sizes).sort().values)  # little padding
    shuffled = [t for _, t in run.batches("train", 6, generator=seeded())]
    assert torch.equal(torch.cat(shuffled).sort(0).values, run.targets("train").sort(0).values)


def test_moves_batches(padded: qm9.PaddedMolecules) -> None:
    groups, targets = next(iter(qm9.Batches(padded, None, 5, device="meta")))
    assert targets.device.type == groups[0].edges.device.type == "meta"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": torch.tensor([42])}, r"0 \.\.\. 41"),
        ({"rows": torch.tensor([-1])}, r"0 \.\.\. 41"),
        ({"rows": torch.tensor([], dtype=torch.long)}, "non-empty"),
        ({"batch_size": 0}, "at least 1"),
        ({"groups": 0}, "at least 1"),
        ({"shuffle": True}, "generator"),
        ({"drop_last": True, "batch_size": 43}, "no batch"),
    ],
)
def test_wrong_settings(
    padded: qm9.PaddedMolecules, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        qm9.Batches(padded, **wrong)  # type: ignore[arg-type]


def test_targets_of_another_set(sample: qm9.Molecules) -> None:
    with pytest.raises(SettingsError, match=r"\[42, T\]"):
        qm9.PaddedMolecules(sample, torch.zeros(41, 11))
