"""The engine over time: warm-up, epochs, predictions, what is collected when."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from engines import Toy
from oracles import close
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors


def test_the_contract_runs_as_written() -> None:
    """The lines that later work leans on, letter by letter."""
    N, B, T = 50, 7, 3
    H_all, Y_all = torch.randn(N, 10), torch.randn(N, T)
    H, Y = torch.randn(B, 10), torch.randn(B, T)
    g = torch.Generator().manual_seed(0)
    w = torch.randn(T, 10)

    head = heads.Gaussian(in_features=10, tasks=3, bias=False, noise_scale=1.0)
    prior = priors.isotropic(head, variance=5e-3)
    full = inference.Conjugate().infer(head, H_all, Y_all, prior)
    posterior = inference.Conjugate().infer(head, H, Y, full)
    assert posterior.mean.shape == (T, 10)
    assert posterior.covariance_matrix.shape in ((1, 10, 10), (T, 10, 10))
    assert posterior.variance.shape == (T, 10)
    assert posterior.sample((5,), generator=g).shape == (5, T, 10)
    assert posterior.log_prob(w).shape == (T,)
    grad = gradients.distribution(head, posterior, H, Y)
    assert grad.mean.shape == grad.variance.shape == (T, B, 10)
    grad = gradients.distribution(
        head, posterior, H, Y, estimator=gradients.MonteCarlo(samples=1024, generator=g)
    )
    direction = aggregation.PrecisionWeighted.paper(power=0.85)(grad)
    assert direction.shape == (B, 10)

    backbone = nn.Linear(5, 64)
    x, y1, y2 = torch.randn(20, 5), torch.randn(20, 7), torch.randn(20, 4)
    mtl = ba.BayesAgg(
        heads={"energy": heads.Gaussian(64, tasks=7), "other": heads.Gaussian(64, tasks=4)},
        aggregation=aggregation.PrecisionWeighted.paper(power={"energy": 0.85, "other": 0.75}),
    )
    optimizer = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=1e-3)
    for _ in range(2):
        losses = mtl.backward(backbone(x), {"energy": y1, "other": y2})
        assert {name: loss.shape for name, loss in losses.items()} == {
            "energy": (7,),
            "other": (4,),
        }
        optimizer.step()
        optimizer.zero_grad()
        mtl.update_prior()
        mtl.start_bayes()
    assert mtl.predict(backbone(x))["energy"].shape == (20, 7)
    assert mtl.predictive(backbone(x))["other"].batch_shape == (20, 4)
    assert mtl.info.bayesian
    mtl.load_state_dict(mtl.state_dict())


def test_predictions_follow_the_point_then_the_posterior(rng) -> None:
    toy = Toy(rng)
    h = toy.backbone(toy.x).detach()
    point = {
        "energy": h @ toy.heads["energy"].weight.T,
        "other": torch.cat([h, torch.ones(24, 1).double()], 1) @ toy.heads["other"].weight.T,
    }
    toy.epoch()  # a prior exists, but the warm-up goes on: still the point
    for name, outputs in toy.mtl.predict(h).items():
        close(outputs, point[name])
    toy.mtl.start_bayes()
    for name, outputs in toy.mtl(h).items():
        mean = toy.mtl.priors()[name].mean
        close(outputs, h @ mean[:, :5].T + (mean[:, 5] if name == "other" else 0.0))
        predictive = toy.mtl.predictive(h)[name]
        close(predictive.mean, outputs)
        assert (predictive.stddev > toy.heads[name].noise_scale).all()


def test_predictive_before_a_prior_says_what_to_call(rng) -> None:
    toy = Toy(rng)
    with pytest.raises(errors.StateError, match=r"energy.*update_prior"):
        toy.mtl.predictive(toy.backbone(toy.x))


def test_predictions_are_differentiable_in_the_features(rng) -> None:
    toy = Toy(rng).bayes()
    h = toy.backbone(toy.x)
    toy.mtl.predict(h)["energy"].sum().backward()
    assert toy.grads()


def test_start_bayes_needs_a_prior(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    with pytest.raises(errors.StateError, match=r"energy.*update_prior"):
        toy.mtl.start_bayes()
    assert toy.mtl.warmup


def test_update_prior_needs_data(rng) -> None:
    toy = Toy(rng)
    with pytest.raises(errors.StateError, match=r"energy.*other.*backward"):
        toy.mtl.update_prior()
    toy.epoch()
    before = toy.mtl.priors()
    with pytest.raises(errors.StateError):
        toy.mtl.update_prior()
    assert toy.mtl.priors() == before


def test_warmup_ends_by_itself(rng) -> None:
    toy = Toy(rng, warmup_epochs=2)
    toy.epoch()
    assert toy.mtl.warmup
    toy.epoch()
    assert not toy.mtl.warmup
    toy.step(slice(0, 16))
    assert toy.mtl.info.bayesian


def test_without_a_warmup_collect_makes_the_first_prior(rng) -> None:
    toy = Toy(rng, warmup=False)
    with pytest.raises(
        errors.StateError, match=r"an epoch through collect\(\) and call update_prior"
    ):
        toy.step(slice(0, 16))
    assert toy.grads() == []
    for rows in toy.batches:
        x, y = toy.batch(rows)
        toy.mtl.collect(toy.backbone(x), y)
    assert toy.grads() == []
    toy.mtl.update_prior()
    toy.step(slice(0, 16))
    assert toy.mtl.info.bayesian


def test_collect_sees_what_backward_sees(rng) -> None:
    toy = Toy(rng)
    toy.epoch()
    one = toy.mtl.priors()
    with torch.no_grad():
        for rows in toy.batches:
            x, y = toy.batch(rows)
            toy.mtl.collect(toy.backbone(x), y)
    toy.mtl.update_prior()
    for name, prior in toy.mtl.priors().items():
        close(prior.mean, one[name].mean)
        close(prior.precision_matrix, one[name].precision_matrix)


def test_evaluation_mode_collects_nothing(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    toy.mtl.eval()
    toy.step(slice(16, 24))
    toy.mtl.train()
    toy.mtl.update_prior()
    x, y = toy.batch(slice(0, 16))
    direct = inference.Conjugate().infer(
        toy.heads["energy"],
        toy.backbone(x),
        y["energy"],
        priors.isotropic(toy.heads["energy"], 0.5),
    )
    close(toy.mtl.priors()["energy"].mean, direct.mean)
    toy.mtl.eval()
    toy.step(slice(0, 16))
    with pytest.raises(errors.StateError, match="train"):
        toy.mtl.update_prior()


def test_the_prior_holds_during_the_epoch(rng) -> None:
    toy = Toy(rng).bayes()
    before = toy.mtl.priors()
    toy.step(slice(0, 16))
    assert toy.mtl.priors() == before  # the same objects
    toy.mtl.update_prior()
    assert toy.mtl.priors() != before


def test_schemes_estimators_and_policies_by_name(rng) -> None:
    policies = {"energy": priors.FullData(0.1), "other": priors.FullData(2.0)}
    toy = Toy(rng, inference=inference.Conjugate(), prior=policies).bayes()
    with torch.no_grad():
        h = toy.backbone(toy.x)
    for name, policy in policies.items():
        head = toy.heads[name]
        direct = inference.Conjugate().infer(
            head, h, toy.y[name], priors.isotropic(head, policy.variance)
        )
        close(toy.mtl.priors()[name].mean, direct.mean)


def test_batch_norm_statistics_move_once_a_step(rng) -> None:
    backbone = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    twin = copy.deepcopy(backbone)
    mtl = ba.BayesAgg({"a": heads.Gaussian(5)})
    x, y = torch.randn(9, 4, generator=rng), torch.randn(9, 1, generator=rng)
    mtl.collect(twin(x).detach(), {"a": y})
    mtl.update_prior()
    for bayes in (False, True):
        mtl.warmup = not bayes
        mtl.backward(backbone(x), {"a": y})
        if bayes:
            twin(x)
        assert torch.equal(backbone[1].running_mean, twin[1].running_mean)
        assert backbone[1].num_batches_tracked == twin[1].num_batches_tracked == 1 + bayes


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("keep", [False, True])
def test_copies_are_independent_and_equal(rng, copier, keep) -> None:
    toy = Toy(rng, keep_gradients=keep).bayes()
    toy.step(slice(0, 16))  # in the middle of an epoch
    toy.clear()
    twin = copy.copy(toy)
    twin.mtl = copier(toy.mtl)
    twin.backbone = copier(toy.backbone)
    twin.heads = dict(twin.mtl.heads.items())
    for t in (twin, toy):
        t.step(slice(16, 24))
        t.mtl.update_prior()
    for one, two in zip(toy.grads(), twin.grads(), strict=True):
        assert torch.equal(one, two)
    for name in toy.heads:
        assert torch.equal(toy.mtl.priors()[name].mean, twin.mtl.priors()[name].mean)
    assert twin.heads["energy"] is not toy.heads["energy"]
    with torch.no_grad():
        twin.heads["energy"].weight.zero_()
    assert toy.heads["energy"].weight.abs().max() > 0


def test_an_engine_with_a_generator_can_be_copied(rng) -> None:
    toy = Toy(rng, estimator=gradients.MonteCarlo(8), generator=rng).bayes()
    twin = copy.copy(toy)
    twin.mtl = copy.deepcopy(toy.mtl)
    twin.backbone = copy.deepcopy(toy.backbone)
    for t in (toy, twin):
        t.step(slice(0, 16))
    assert toy.mtl.generator is not twin.mtl.generator
    for one, two in zip(toy.grads(), twin.grads(), strict=True):
        assert torch.equal(one, two)


def test_a_head_in_two_engines_is_told_by_the_one_that_lost_it() -> None:
    """The first would predict with weights of the second, beside a predictive of its own."""
    head, h = heads.Gaussian(4), torch.randn(20, 4)
    first, second = ba.BayesAgg({"r": head}), ba.BayesAgg({"r": head})
    batches = [(h, {"r": h[:, :1]})]
    for mtl, wanted in ((first, h[:, :1]), (second, h[:, 1:2])):
        mtl.collect(h, {"r": wanted})
        mtl.update_prior()
        mtl.start_bayes()
    second.predict(h)
    kept = copy.deepcopy(second)
    with pytest.raises(errors.StateError, match="head 'r' follow the posterior of another engine"):
        first.predict(h)
    first.refit(batches)
    close(first.predict(h)["r"], first.predictive(h)["r"].mean.float())
    close(kept.predict(h)["r"], kept.predictive(h)["r"].mean.float())
