"""Saving and going on: a resumed engine takes the very same steps."""

from __future__ import annotations

import io

import pytest
import torch
from engines import Toy
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference


def stored(state: dict) -> dict:
    """Through a file, with torch's safe loader."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def fresh(like: Toy, **settings) -> Toy:
    """Another engine on the same data, its weights different until it is loaded."""
    torch.manual_seed(77)
    other = Toy(torch.Generator().manual_seed(77), **settings)
    other.x, other.y = like.x, like.y
    return other


def load(target: Toy, source: Toy) -> None:
    target.mtl.load_state_dict(stored(source.mtl.state_dict()))
    target.backbone.load_state_dict(stored(source.backbone.state_dict()))


def assert_same_future(one: Toy, two: Toy) -> None:
    for toy in (one, two):
        toy.clear()
        toy.step(slice(16, 24))
    assert one.grads()
    for a, b in zip(one.grads(), two.grads(), strict=True):
        assert torch.equal(a, b)
    for toy in (one, two):
        toy.mtl.update_prior()
    for name, prior in one.mtl.priors().items():
        for key, tensor in prior.tensors().items():
            assert torch.equal(tensor, two.mtl.priors()[name].tensors()[key])
    for toy in (one, two):
        toy.clear()
        toy.mtl.start_bayes()
        toy.step(slice(0, 16))
    for a, b in zip(one.grads(), two.grads(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("moment", ["start", "warmup", "mid-warmup", "bayes", "mid-bayes"])
def test_a_resumed_engine_goes_on_to_the_bit(rng, moment) -> None:
    toy = Toy(rng)
    if moment in ("warmup", "mid-warmup"):
        toy.epoch()
    if moment in ("bayes", "mid-bayes"):
        toy.bayes()
    if moment.startswith("mid"):
        toy.step(slice(0, 16))
    other = fresh(toy)
    load(other, toy)
    assert other.mtl.warmup == toy.mtl.warmup
    assert_same_future(toy, other)


@pytest.mark.parametrize("inside", [False, True])
def test_distributed_checkpoints_hold_an_engine(rng, inside) -> None:
    """Torch looks the keys of a state up as attributes of the modules."""
    toy = Toy(rng).bayes()
    toy.step(slice(0, 16))
    other = fresh(toy)
    one, two = toy.mtl, other.mtl
    if inside:
        one, two = (torch.nn.ModuleDict({"net": t.backbone, "mtl": t.mtl}) for t in (toy, other))
    found = get_model_state_dict(one)
    assert found.keys() == one.state_dict().keys()
    set_model_state_dict(two, stored(found))
    other.backbone.load_state_dict(toy.backbone.state_dict())
    assert_same_future(toy, other)


def test_the_state_overwrites_what_a_used_engine_held(rng) -> None:
    toy = Toy(rng).bayes()
    toy.step(slice(0, 16))
    other = fresh(toy)
    other.bayes()
    other.step(slice(0, 8))
    other.clear()
    load(other, toy)
    assert_same_future(toy, other)
    first = Toy(rng)  # back to before the first prior
    other.mtl.load_state_dict(first.mtl.state_dict())
    assert other.mtl.warmup
    with pytest.raises(errors.StateError):
        other.mtl.priors()


def test_missing_targets_are_part_of_the_sums(rng) -> None:
    toy = Toy(rng)
    x, y = toy.batch(slice(0, 16))
    holes = {name: (t, torch.rand(t.shape, generator=rng) < 0.5) for name, t in y.items()}
    toy.mtl.backward(toy.backbone(x), holes)
    other = fresh(toy)
    load(other, toy)
    assert_same_future(toy, other)


def test_warmup_epochs_are_counted_across_a_restart(rng) -> None:
    toy = Toy(rng, warmup_epochs=2)
    toy.epoch()
    other = fresh(toy, warmup_epochs=2)
    load(other, toy)
    other.epoch()
    assert not other.mtl.warmup


@pytest.mark.parametrize("own", [False, True])
def test_the_generators_state_is_saved(rng, own) -> None:
    """The engine's, and those that a scheme and an estimator have of their own."""

    def make(seed: int) -> dict:
        engines, schemes, estimators = (torch.Generator().manual_seed(seed + i) for i in range(3))
        if not own:
            return {"estimator": gradients.MonteCarlo(16), "generator": engines}
        return {
            "estimator": gradients.MonteCarlo(16, generator=estimators),
            "inference": inference.Ensemble(40, refresh=1, generator=schemes),
        }

    toy = Toy(rng, **make(1)).bayes()
    toy.step(slice(0, 16))  # moves the generator
    other = fresh(toy, **make(2))
    load(other, toy)
    assert_same_future(toy, other)


def test_a_snapshot_is_not_touched_by_later_steps(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    state = toy.mtl.state_dict()
    before = stored(state)
    toy.step(slice(16, 24))
    assert "state.priors.energy.FullData.statistics.gram" in state
    for name, tensor in state.items():
        assert torch.equal(tensor, before[name])


def test_a_loaded_engine_shares_nothing_with_its_source(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    other = fresh(toy)
    other.mtl.load_state_dict(toy.mtl.state_dict())
    other.step(slice(16, 24))
    toy.mtl.update_prior()
    third = fresh(toy)
    load(third, toy)
    for name, prior in toy.mtl.priors().items():
        assert torch.equal(prior.mean, third.mtl.priors()[name].mean)
    design = toy.backbone(toy.x[:16]).detach()
    expected = torch.eye(5).double() / 0.5 + 4 * design.T @ design
    torch.testing.assert_close(toy.mtl.priors()["energy"].precision_matrix[0], expected)


@pytest.mark.parametrize(
    "others",
    [
        {"energy": heads.Gaussian(5, tasks=2)},
        {"energy": heads.Gaussian(5, tasks=2), "more": heads.Gaussian(5, tasks=3, bias=True)},
        {"energy": heads.Gaussian(5, tasks=3), "other": heads.Gaussian(5, tasks=3, bias=True)},
        {"energy": heads.Gaussian(4, tasks=2), "other": heads.Gaussian(4, tasks=3, bias=True)},
    ],
    ids=["fewer", "renamed", "more tasks", "other features"],
)
def test_a_state_of_other_heads_is_refused_and_changes_nothing(rng, others) -> None:
    toy = Toy(rng).bayes()
    engine = ba.BayesAgg(others)
    size = next(iter(others.values())).in_features
    targets = {name: torch.randn(6, head.tasks) for name, head in others.items()}
    engine.collect(torch.randn(6, size), targets)
    engine.update_prior()
    before = engine.priors()
    weights = {name: head.weight.clone() for name, head in others.items()}
    with pytest.raises((errors.BayesAggError, RuntimeError)):
        engine.load_state_dict(toy.mtl.state_dict())
    assert engine.warmup
    for name, prior in engine.priors().items():
        for key, tensor in prior.tensors().items():
            assert torch.equal(tensor, before[name].tensors()[key])
    for name, head in others.items():
        assert torch.equal(head.weight, weights[name])
