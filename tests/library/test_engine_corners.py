"""Legitimate use that once crashed, or changed what it should have left alone."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors

D = 5


def features(rng: torch.Generator, batch: int = 20) -> Tensor:
    return torch.randn(batch, D, generator=rng)


def step(mtl: ba.BayesAgg, x: Tensor, targets) -> Tensor:
    h = x.clone().requires_grad_()
    mtl.backward(h, targets)
    assert h.grad is not None
    return h.grad


AGGREGATIONS = {
    "powers": aggregation.PrecisionWeighted.paper(power=0.85),
    "floor": aggregation.PrecisionWeighted(power=0.85, floor=0.1, resolution="example"),
    "task": aggregation.PrecisionWeighted(power=0.85, resolution="task"),
    "full": aggregation.PrecisionWeighted(covariance="full"),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_weight_of_zero_silences_its_own_task_alone(rng: torch.Generator, name: str) -> None:
    """As a mask does, but for the count that the task's loss is averaged over."""
    head = heads.Gaussian(D, 2).double()
    x, y = features(rng, 6).double(), torch.randn(6, 2, generator=rng).double()
    prior = priors.isotropic(head, 0.5)
    weight, mask = torch.ones(6, 2).double(), torch.ones(6, 2, dtype=torch.bool)
    weight[0, 0], mask[0, 0] = 0, False
    weighted = gradients.distribution(head, prior, x, (y, None, weight))
    masked = gradients.distribution(head, prior, x, (y, mask))
    method = AGGREGATIONS[name]
    found, expected = method.aggregate(weighted), method.aggregate(masked)
    assert found.weights is not None
    assert expected.weights is not None
    torch.testing.assert_close(found.weights, expected.weights)
    assert found.direction[0].abs().min() > 0
    factor = torch.tensor([6 / 5, 1.0]).double()[:, None, None]  # B / n of the masked task
    direction = (expected.weights * masked.mean).sum(0)
    if name != "full":  # there the weights are matrices
        torch.testing.assert_close(found.direction, direction)
        torch.testing.assert_close(
            expected.direction, (expected.weights * factor * masked.mean).sum(0)
        )


def test_weights_in_pieces_of_tasks_and_examples(rng: torch.Generator) -> None:
    x, y = features(rng, 12), (torch.rand(12, 3, generator=rng) < 0.5).float()
    weight = torch.rand(12, 3, generator=rng)
    weight[:4, 1] = 0
    whole = ba.BayesAgg({"a": heads.Bernoulli(D, 3)}, working_memory=None)
    pieces = deepcopy(whole)
    pieces.working_memory = 1
    for mtl in (whole, pieces):
        mtl.collect(x, {"a": (y, None, weight)})
        mtl.update_prior()
        mtl.start_bayes()
    grads = [step(mtl, x, {"a": (y, None, weight)}) for mtl in (whole, pieces)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("memory", [1, 12_000, 24_000])
def test_effective_tasks_of_examples_without_a_label(rng: torch.Generator, memory: int) -> None:
    y = torch.randn(8, 3, generator=rng)
    y[0, 1] = y[[2, 3, 6]] = torch.nan
    x = features(rng, 8)
    whole = ba.BayesAgg(
        {"a": heads.Gaussian(D, 3, missing="nan")}, aggregation.PrecisionWeighted.paper(power=0.7)
    )
    pieces = deepcopy(whole)
    pieces.working_memory = memory
    found = []
    for mtl in (whole, pieces):
        mtl.collect(x, {"a": y})
        mtl.update_prior()
        mtl.start_bayes()
        step(mtl, x, {"a": y})
        assert mtl.info is not None
        found.append(mtl.info.effective_tasks)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("policy", [priors.FullData, priors.PreviousBatch])
def test_a_state_that_was_loaded_stays_as_it_was(rng: torch.Generator, policy: type) -> None:
    x, y = features(rng), torch.randn(20, 2, generator=rng)

    def engine() -> ba.BayesAgg:
        return ba.BayesAgg({"a": heads.Gaussian(D, 2)}, prior=policy(in_place=True))

    first = engine()
    for _ in range(2):
        first.collect(x, {"a": y})
        first.update_prior()
    state = first.state_dict()
    before = deepcopy(state)
    one, two = engine(), engine()
    one.load_state_dict(state)
    two.load_state_dict(state)
    for _ in range(2):
        one.collect(x, {"a": y + 3})
        one.update_prior()
    for name in ("mean", "precision_matrix"):
        key = f"state.priors.a.{policy.__name__}.prior.bayesagg_pyro.Gaussian.{name}"
        assert torch.equal(state[key], before[key])
    assert not torch.equal(one.priors()["a"].mean, first.priors()["a"].mean)
    torch.testing.assert_close(two.priors()["a"].mean, first.priors()["a"].mean)


def test_frozen_heads_do_not_learn(rng: torch.Generator) -> None:
    mtl = ba.BayesAgg({"g": heads.Gaussian(D, 2), "b": heads.Bernoulli(D, 1)})
    mtl.heads["b"].requires_grad_(False)
    x = features(rng)
    targets = {"g": torch.randn(20, 2, generator=rng), "b": torch.ones(20, 1)}
    step(mtl, x, targets)
    mtl.update_prior()
    mtl.start_bayes()
    assert (step(mtl, x, targets) != 0).any()
    assert mtl.heads["b"].weight.grad is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_update_needs_data_also_the_second_time(
    rng: torch.Generator, streaming: bool, in_place: bool
) -> None:
    policy = priors.FullData(in_place=in_place, storage=inference.Storage(streaming=streaming))
    mtl = ba.BayesAgg({"a": heads.Bernoulli(D, 2)}, prior=policy)
    mtl.collect(features(rng), {"a": torch.ones(20, 2)})
    mtl.update_prior()
    before = mtl.priors()["a"].mean.clone()
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        mtl.update_prior()
    assert torch.equal(mtl.priors()["a"].mean, before)
    again = ba.BayesAgg({"a": heads.Bernoulli(D, 2)}, prior=policy)
    again.load_state_dict(mtl.state_dict())
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        again.update_prior()


@pytest.mark.parametrize("validate", ["now", "deferred"])
def test_masks_may_begin_at_any_batch(rng: torch.Generator, validate) -> None:
    x, y = features(rng), torch.randn(20, 3, generator=rng)
    mask = torch.rand(20, 3, generator=rng) < 0.7
    found = []
    for in_place in (False, True):
        policy = priors.PreviousBatch(in_place=in_place)
        mtl = ba.BayesAgg({"a": heads.Gaussian(D, 3)}, prior=policy, validate=validate)
        for targets in (y, (y, mask), y):
            mtl.collect(x, {"a": targets})
        found.append(mtl.priors()["a"].variance)
    torch.testing.assert_close(*found)


def test_posteriors_that_are_held_are_whole(rng: torch.Generator) -> None:
    """A second-order scheme with a refresh of its own goes through uncut, and is held."""

    class Seldom(inference.TaylorGGN):
        refresh = 3

    rule, kinds = aggregation.PrecisionWeighted(), {"a": heads.Bernoulli(D, 4)}
    mtl = ba.BayesAgg(kinds, rule, inference=Seldom(), working_memory=1)
    x, y = features(rng), (torch.rand(20, 4, generator=rng) < 0.5).float()
    step(mtl, x, {"a": y})
    mtl.update_prior()
    mtl.start_bayes()
    fresh = []
    for _ in range(4):
        step(mtl, x, {"a": y})
        assert mtl.info is not None
        fresh.append(mtl.info.inferred["a"])
    assert fresh == [True, False, False, True]


def test_variances_in_blocks_have_gradients(rng: torch.Generator) -> None:
    head = heads.Bernoulli(99, 2).double()
    x = torch.randn(30, 99, generator=rng).double()
    y = (torch.rand(30, 2, generator=rng) < 0.5).double()
    scheme = inference.TaylorGGN()
    dense = scheme.infer(head, x, y, priors.isotropic(head, 1.0)).to_gaussian()
    blocked = scheme.infer(head, x, y, dense)
    upper = blocked.upper_inverse.clone().requires_grad_()
    again = type(blocked)(**{**blocked.tensors(), "upper_inverse": upper})
    again.variance.sum().backward()
    torch.testing.assert_close(upper.grad, 2 * upper.detach())
