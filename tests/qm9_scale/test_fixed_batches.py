"""Batches of fixed shapes hold the same molecules as free ones, in the same order."""

from __future__ import annotations

import pytest
import torch

from experiments.errors import SettingsError
from experiments.qm9 import batching, load
from experiments.qm9.batching import FixedBatches
from experiments.qm9.prepared import HEAD, Prepared, prepare
from tests.qm9_scale.conftest import TABLES


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("cache")
    whole = load(path=TABLES, folder=folder)
    return prepare(whole, seed=0, molecules=34, validation=3, test=3)


@pytest.mark.parametrize(("batch", "groups"), [(5, 1), (5, 3), (34, 4), (50, 2), (1, 1)])
def test_a_pass_is_the_same_pass(prepared: Prepared, batch: int, groups: int) -> None:
    rows = prepared.train.rows
    data = prepared.train.molecules
    fixed = FixedBatches(data, rows, batch, groups=groups)
    drawn = fixed.draw(torch.Generator().manual_seed(4))
    free = list(prepared.train.batches(batch, torch.Generator().manual_seed(4)))
    assert len(drawn) == len(free)
    for (shape, chosen), (_, targets) in zip(drawn, free, strict=True):
        graphs, found = data.gather(chosen, shape)
        assert torch.equal(found, targets[HEAD])
        assert [tuple(graph.nodes.shape[:2]) for graph in graphs] == list(shape)
        assert len(shape) <= groups
        atoms = torch.cat([graph.atoms for graph in graphs])
        assert torch.equal(atoms, data.sizes[chosen])
    seen = torch.cat([chosen for _, chosen in drawn]).sort().values
    assert torch.equal(seen, rows.sort().values)


def test_what_a_shape_holds_is_what_the_network_needs(prepared: Prepared) -> None:
    data = prepared.train.molecules
    (shape, chosen), *_ = FixedBatches(data, prepared.train.rows, 6, groups=2).draw(
        torch.Generator().manual_seed(1)
    )
    fixed, _ = data.gather(chosen, shape)
    free, _, order = data.batch(chosen, groups=6)
    assert torch.equal(order, chosen)
    first, same = fixed[0], free[0]
    n = same.size
    assert torch.equal(first.nodes[0, :n], same.nodes[0])
    assert torch.equal(first.edges[0, :n, :n], same.edges[0])


def test_a_batch_that_does_not_fit_takes_the_whole_shape(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_TRIALS", 1)  # a usual shape that many batches exceed
    data, rows = prepared.train.molecules, prepared.train.rows
    fixed = FixedBatches(data, rows, 2, groups=2)
    whole = ((2, int(data.sizes[rows].max())),)
    seen = set()
    for seed in range(5):
        for shape, chosen in fixed.draw(torch.Generator().manual_seed(seed)):
            assert shape in (fixed.usual, whole)
            seen.add(shape)
            limits = torch.tensor([n for count, n in shape for _ in range(count)])
            assert bool((data.sizes[chosen] <= limits).all())
    assert seen == {fixed.usual, whole}


def test_shapes_do_not_depend_on_the_order(prepared: Prepared) -> None:
    rows = prepared.train.rows
    shapes = []
    for seed in (1, 2):
        fixed = FixedBatches(prepared.train.molecules, rows, 5, groups=2)
        fixed.draw(torch.Generator().manual_seed(seed))
        shapes.append(fixed.usual)
    assert shapes[0] == shapes[1]


def test_bad_settings(prepared: Prepared) -> None:
    with pytest.raises(SettingsError, match="cannot be cut into batches of 0"):
        FixedBatches(prepared.train.molecules, prepared.train.rows, 0)
