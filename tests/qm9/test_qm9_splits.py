from __future__ import annotations

import pytest
import torch

from experiments import qm9
from experiments.errors import DataError, SettingsError
from experiments.scores import MeanAbsoluteError

WHOLE = 130_831


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_whole_split() -> None:
    parts = qm9.split(WHOLE, generator=seeded())
    order = torch.randperm(WHOLE, generator=seeded())
    assert torch.equal(parts.test, order[:10_000])
    assert torch.equal(parts.validation, order[10_000:20_000])
    assert torch.equal(parts.train, order[20_000:])
    assert len(parts.train) == 110_831


def test_seed_decides_and_global_state_is_untouched() -> None:
    before = torch.random.get_rng_state()
    first, same, other = (qm9.split(WHOLE, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(first.train, same.train)
    assert not torch.equal(first.test, other.test)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("molecules", "held"), [(2, 1_000), (6_000, 1_000), (50_000, 5_000), (110_831, 10_000)]
)
def test_subsets_are_nested(molecules: int, held: int) -> None:
    whole = qm9.split(WHOLE, generator=seeded())
    part = qm9.split(WHOLE, generator=seeded(), molecules=molecules)
    assert (len(part.train), len(part.validation), len(part.test)) == (molecules, held, held)
    assert torch.equal(part.train, whole.train[:molecules])
    assert torch.equal(part.validation, whole.validation[:held])
    assert torch.equal(part.test, whole.test[:held])


def test_given_sizes_and_small_sets() -> None:
    part = qm9.split(WHOLE, generator=seeded(), molecules=100, validation=7, test=10_000)
    assert (len(part.train), len(part.validation), len(part.test)) == (100, 7, 10_000)
    small = qm9.split(42, generator=seeded())
    everything = torch.cat([small.train, small.validation, small.test])
    assert sorted(everything.tolist()) == list(range(42))
    assert (len(small.validation), len(small.test)) == (3, 3)


@pytest.mark.parametrize(
    "wrong", [{"molecules": 110_832}, {"molecules": 1}, {"test": 0}, {"validation": 10_001}]
)
def test_impossible_sizes(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="are possible"):
        qm9.split(WHOLE, generator=seeded(), **wrong)
    with pytest.raises(SettingsError, match="too few"):
        qm9.split(3, generator=seeded())


def sample_data(sample: qm9.Molecules, tmp_path_factory: pytest.TempPathFactory) -> qm9.QM9:
    return qm9.QM9(sample, "qm9pack", "pyg", "0" * 64, tmp_path_factory.getbasetemp())


@pytest.fixture
def data(sample: qm9.Molecules, tmp_path_factory: pytest.TempPathFactory) -> qm9.QM9:
    return sample_data(sample, tmp_path_factory)


def test_scale_comes_from_training_rows(data: qm9.QM9) -> None:
    run = qm9.prepare(data, seed=3, molecules=20)
    assert len(run.split.train) == 20
    train = torch.from_numpy(data.molecules.targets)[run.split.train].double()
    assert torch.allclose(run.scale.mean, train.mean(0))
    assert torch.allclose(run.scale.std, train.std(0, correction=1))
    mine = run.train.targets["properties"].double()
    assert torch.allclose(mine.mean(0), torch.zeros(11).double(), atol=1e-5)
    assert torch.allclose(mine.std(0), torch.ones(11).double(), atol=1e-5)


def test_peer_normalisation_uses_every_row(data: qm9.QM9) -> None:
    run = qm9.prepare(data, seed=3, molecules=20, peer_normalisation=True)
    everything = torch.from_numpy(data.molecules.targets).double()
    assert torch.allclose(run.scale.mean, everything.mean(0))
    assert torch.allclose(run.scale.std, everything.std(0))


def test_parts_hold_their_molecules(data: qm9.QM9) -> None:
    run = qm9.prepare(data, seed=3, molecules=20)
    targets = torch.from_numpy(data.molecules.targets)
    for part in ("train", "validation", "test"):
        rows = getattr(run.split, part)
        back = run.scale.inverse(getattr(run, part).targets["properties"])
        assert torch.allclose(back, targets[rows], rtol=1e-4, atol=1e-4)
        sizes = run.train.molecules.sizes[getattr(run, part).rows]
        assert sizes.tolist() == data.molecules.n_atoms[rows.numpy()].tolist()


def test_errors_in_reported_units(data: qm9.QM9) -> None:
    """Predictions that are off by 0.002 of the stored unit: 0.002, or 2 meV for energies."""
    targets = torch.from_numpy(data.molecules.targets).double()
    scale = qm9.Standardiser.fit(targets)
    meter = MeanAbsoluteError(scale.error_scale)
    sign = torch.where(torch.arange(42) % 2 == 0, 1.0, -1.0)[:, None]
    off = scale.transform(targets + 0.002 * sign)
    for half in (slice(0, 20), slice(20, 42)):
        meter.update(off[half], scale.transform(targets)[half])
    expected = [0.002, 0.002, 2, 2, 0.002, 2, 2, 2, 2, 2, 0.002]
    assert meter.compute() == pytest.approx(expected, rel=1e-6)


def test_targets_that_cannot_be_scaled() -> None:
    targets = torch.rand(5, 11)
    targets[:, 5] = 1.0
    with pytest.raises(DataError, match="zpve is the same for all 5"):
        qm9.Standardiser.fit(targets)
    with pytest.raises(DataError, match="N > 1"):
        qm9.Standardiser.fit(targets[:1])
    with pytest.raises(DataError, match="11"):
        qm9.Standardiser.fit(targets[:, :3])
