"""Posteriors held between refreshes, resumed runs, and heads that do not share randomness."""

from __future__ import annotations

import io

import pytest
import torch
from problems import F64, normal, seed
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.engine.streams import streams


class World:
    """Two heads on a small network, three batches an epoch."""

    def __init__(self, scheme, number: int = 0, **settings) -> None:
        torch.manual_seed(number)
        rng = seed(5)
        self.x = normal(rng, 18, 3)
        self.y = {
            "size": normal(rng, 18, 1),
            "sick": (torch.rand(18, 1, generator=rng) < 0.5).double(),
        }
        self.backbone = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
        settings.setdefault("estimator", gradients.MonteCarlo(8))
        self.mtl = ba.BayesAgg(
            {"size": heads.Gaussian(2), "sick": heads.Bernoulli(2)},
            inference=scheme,
            generator=seed(number),
            **settings,
        ).double()

    def step(self, number: int) -> None:
        rows = slice(6 * (number % 3), 6 * (number % 3) + 6)
        for module in (self.backbone, self.mtl):
            module.zero_grad(set_to_none=True)
        y = {name: values[rows] for name, values in self.y.items()}
        self.mtl.backward(self.backbone(self.x[rows]), y)

    def bayes(self) -> World:
        for number in range(3):
            self.step(number)
        self.mtl.update_prior()
        self.mtl.start_bayes()
        return self

    def grads(self) -> list[torch.Tensor]:
        return [p.grad.clone() for p in self.backbone.parameters()]


class Counting(inference.Iterative):
    """Prior draws around the features' mean: which batch they are of can be read off them."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.calls: list[tuple[int, bool]] = []

    def fit(self, joint, start, generator):
        self.calls.append((len(joint.features), start is not None))
        draws = joint.prior.sample((4,), generator=generator)
        return posteriors.Empirical(draws + joint.features.mean())


@pytest.mark.parametrize(
    ("refresh", "fresh", "batches"),
    [("step", [1, 1, 1, 1, 1, 1, 1], 7), (1, [1] * 7, 7), (3, [1, 0, 0, 1, 0, 0, 1], 3)],
)
def test_every_so_many_steps(refresh, fresh, batches) -> None:
    scheme = Counting(refresh=refresh)
    w = World(scheme).bayes()
    assert scheme.calls == [(18, False)] * 2
    scheme.calls.clear()
    seen = []
    for number in range(7):
        w.step(number)
        seen.append(w.mtl.info.inferred)
    assert [one["size"] for one in seen] == [bool(f) for f in fresh]
    assert [one["sick"] for one in seen] == [bool(f) for f in fresh]
    assert scheme.calls == [(6, number > 0) for number in range(batches) for _ in range(2)]


def test_once_per_epoch_is_the_posterior_of_its_full_data() -> None:
    """Nothing is inferred in a step; a new full-data posterior is fresh in the step after it."""
    scheme = Counting(refresh="epoch")
    w = World(scheme, keep_gradients=True).bayes()
    seen = []
    for number in range(6):
        w.step(number)
        seen.append(w.mtl.info.inferred["size"])
        held = w.mtl.info.stages.posteriors
        assert all(held[name] is full for name, full in w.mtl.posteriors().items())
        if number == 2:
            w.mtl.update_prior()
    assert seen == [True, False, False, True, False, False]
    assert scheme.calls == [(18, False)] * 2 + [(18, True)] * 2  # warm-started the second time


def test_per_epoch_with_a_prior_that_never_learns() -> None:
    """The posterior of the data is used even where the prior of steps stays the base one."""
    w = World(Counting(refresh="epoch"), prior=priors.Constant(1.0), keep_gradients=True).bayes()
    w.step(0)
    assert w.mtl.info.stages.posteriors["size"] is w.mtl.posteriors()["size"]
    assert w.mtl.info.stages.posteriors["size"] is not w.mtl.priors()["size"]
    early = World(Counting(refresh="epoch"), prior=priors.Constant(1.0), warmup=False)
    with pytest.raises(errors.StateError, match="update_prior"):
        early.step(0)


@pytest.mark.parametrize(
    "scheme",
    [
        inference.Ensemble(4, refresh=2),
        inference.Ensemble(4, refresh="epoch"),
        inference.Variational("low_rank", steps=4, particles=2, refresh=2),
        inference.HMC(4, warmup=3, chains=2, refresh=2),
        inference.Delta(),
    ],
    ids=repr,
)
def test_a_resumed_run_is_the_same_to_the_bit(scheme) -> None:
    """Saved in mid-epoch with a posterior held, through a file, into another engine."""
    w = World(scheme).bayes()
    w.step(0)
    buffer = io.BytesIO()
    torch.save([w.mtl.state_dict(), w.backbone.state_dict()], buffer)
    buffer.seek(0)
    other = World(scheme, number=1)
    mtl, backbone = torch.load(buffer, weights_only=True)
    other.mtl.load_state_dict(mtl)
    other.backbone.load_state_dict(backbone)
    for number in (1, 2, 3):
        for one in (w, other):
            one.step(number)
        assert w.mtl.info.inferred == other.mtl.info.inferred
        for a, b in zip(w.grads(), other.grads(), strict=True):
            assert torch.equal(a, b)
        infos = w.mtl.info.condition, other.mtl.info.condition
        assert infos[0].keys() == infos[1].keys()
        assert all(torch.equal(infos[0][name], infos[1][name]) for name in infos[0])
        if number == 2:
            for one in (w, other):
                one.mtl.update_prior()


def test_a_step_that_fails_leaves_the_posterior_held() -> None:
    scheme = Counting(refresh=2)
    w = World(scheme, estimator=gradients.MonteCarlo(8, generator=seed())).bayes()
    w.step(0)
    before = held_state(w.mtl, "size")
    y = {"size": torch.full((6, 1), 1e200, dtype=F64), "sick": w.y["sick"][:6]}
    w.step(1)
    held = held_state(w.mtl, "size")
    assert held["age"] == before["age"] + 1
    with pytest.raises(errors.NonFiniteError):
        w.mtl.backward(w.backbone(w.x[:6]) * 1e200, y)
    after = held_state(w.mtl, "size")
    assert after["age"] == held["age"]
    assert torch.equal(
        after["posterior.bayesagg_pyro.Empirical.samples"],
        held["posterior.bayesagg_pyro.Empirical.samples"],
    )


def held_state(mtl: ba.BayesAgg, name: str) -> dict[str, torch.Tensor]:
    start = f"state.held.{name}."
    found = mtl.state_dict().items()
    return {key.removeprefix(start): value for key, value in found if key.startswith(start)}


def test_a_state_of_other_heads_changes_nothing() -> None:
    w = World(inference.Ensemble(4, refresh=2)).bayes()
    w.step(0)
    other = World(inference.Ensemble(4, refresh=2), number=1).bayes()
    other.step(0)
    state = w.mtl.state_dict()
    state["state.held.sick.posterior.bayesagg_pyro.Empirical.samples"] = torch.zeros(
        4, 1, 9, dtype=F64
    )
    before = other.mtl.state_dict()
    with pytest.raises(errors.ShapeError, match="saved posterior"):
        other.mtl.load_state_dict(state)
    after = other.mtl.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_what_a_head_draws_depends_on_no_other() -> None:
    """Schemes and estimators that sample, in both orders and alone; without a generator it runs."""
    scheme = inference.Ensemble(4, refresh="step")
    found = []
    h, y = normal(seed(), 6, 2), {"a": normal(seed(1), 6, 1), "b": normal(seed(2), 6, 1)}
    for names in ("ab", "ba", "a"):
        mtl = ba.BayesAgg(
            {name: heads.Gaussian(2) for name in names},
            inference=scheme,
            estimator=gradients.MonteCarlo(4),
            generator=seed(),
            keep_gradients=True,
        ).double()
        for head in mtl.heads.values():
            torch.nn.init.zeros_(head.weight)
        mtl.collect(h, {name: y[name] for name in names})
        mtl.update_prior()
        mtl.start_bayes()
        mtl.backward(h.clone().requires_grad_(), {name: y[name] for name in names})
        grad = mtl.info.gradients
        found.append(grad.mean[grad.groups["a"]])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(mtl._slots["a"].generator.get_state(), seed().get_state())
    free = World(scheme, number=2)
    free.mtl = ba.BayesAgg(
        {"size": heads.Gaussian(2), "sick": heads.Bernoulli(2)}, inference=scheme
    ).double()
    free.bayes().step(0)
    assert all(g.isfinite().all() for g in free.grads())


def test_classification_heads_learn_and_predict_by_their_point() -> None:
    """Whatever infers; Gaussian heads predict with the mean of the full-data posterior."""
    w = World(inference.Ensemble(4)).bayes()
    w.step(0)
    assert w.mtl.heads["sick"].weight.grad is not None
    assert w.mtl.heads["size"].weight.grad is None
    h = w.backbone(w.x).detach()
    torch.testing.assert_close(w.mtl.predict(h)["sick"], w.mtl.heads["sick"](h))
    mean = w.mtl.posteriors()["size"].mean
    torch.testing.assert_close(w.mtl.predict(h)["size"], h @ mean.T)


def test_what_is_held_moves_with_the_weights() -> None:
    head = heads.Bernoulli(2)
    slot = Slot("a", head, inference.Ensemble(3, refresh=2), {"a": None}, priors.FullData(), None)
    slot.posterior, slot.age = posteriors.Empirical(torch.randn(3, 1, 3)), 1
    with slot.moving(bayesian=True):
        head.to("meta")
    assert slot.posterior.mean.device.type == "meta"
    assert slot.age == 1


def test_streams_of_different_generators_are_different() -> None:
    made = [streams(seed(number), ["a", "b"]) for number in range(100)]
    seeds = {one.initial_seed() for pair in made for one in pair.values() if one is not None}
    assert len(seeds) == 200


def test_a_step_that_makes_no_posterior_leaves_none_to_later_ones() -> None:
    """Its prior must not pass for the posterior of a step that somebody looks at."""
    scheme = Counting(refresh=5)
    at_weights = gradients.PlugIn(at="weights")
    w = World(scheme, estimator=at_weights, aggregation=aggregation.Mean()).bayes()
    scheme.calls.clear()
    for keep, fresh, calls in ((False, False, 0), (True, True, 2), (True, False, 2)):
        w.mtl.keep_gradients = keep
        w.step(0)
        assert w.mtl.info is not None
        assert w.mtl.info.inferred == {"size": fresh, "sick": fresh}
        assert len(scheme.calls) == calls
    stages = w.mtl.info.stages
    assert stages is not None
    assert all(isinstance(one, posteriors.Empirical) for one in stages.posteriors.values())
