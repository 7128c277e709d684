"""Deferred validation: a bad batch updates nothing, whatever is kept between steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors
from bayesagg_pyro.aggregation import PrecisionWeighted

Targets = dict[str, Tensor]
D = 5


def batch(rng: torch.Generator, positives: float = 0.9) -> tuple[Tensor, Targets]:
    x = torch.randn(64, D, generator=rng)
    return x, {"a": (torch.rand(64, 1, generator=rng) < positives).float()}


def spoilt(rng: torch.Generator) -> tuple[Tensor, Targets]:
    x, y = batch(rng)
    x[0, 0] = torch.nan
    return x, y


def step(mtl: ba.BayesAgg, x: Tensor, y: Targets) -> Tensor:
    h = x.clone().requires_grad_()
    mtl.backward(h, y)
    assert h.grad is not None
    return h.grad


def bad_step(mtl: ba.BayesAgg, x: Tensor, y: Targets) -> None:
    assert (step(mtl, x, y) == 0).all()
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()


def test_a_posterior_that_is_held_is_not_of_zeros(rng: torch.Generator) -> None:
    """Variational, refreshed every fifth step: the bad batch comes first, good ones use it."""
    scheme = inference.Variational(steps=60, refresh=5)
    rule, kinds = PrecisionWeighted(), {"a": heads.Bernoulli(D, 1)}
    mtl = ba.BayesAgg(kinds, rule, inference=scheme, validate="deferred")
    step(mtl, *batch(rng))
    mtl.update_prior()
    mtl.start_bayes()
    before = mtl.priors()["a"]
    bad_step(mtl, *spoilt(rng))
    step(mtl, *batch(rng))
    held = mtl._slots["a"].posterior
    assert held is not None
    assert not mtl.info.inferred["a"]  # type: ignore[union-attr]
    torch.testing.assert_close(held.mean, before.mean)  # there was none before: the prior
    torch.testing.assert_close(held.variance, before.variance)


def test_what_overflows_is_not_collected(rng: torch.Generator) -> None:
    """Finite targets of 1e38 pass the first check and overflow in the update."""
    x, y = torch.randn(20, D, generator=rng), torch.randn(20, 3, generator=rng)

    def prior(mode: str) -> Tensor:
        mtl = ba.BayesAgg({"a": heads.Gaussian(D, 3)}, validate=mode)  # type: ignore[arg-type]
        step(mtl, x, {"a": y})
        mtl.update_prior()
        mtl.start_bayes()
        step(mtl, x, {"a": y})
        huge = y.clone()
        huge[:2] = 1e38
        if mode == "now":
            with pytest.raises(errors.NonFiniteError):
                step(mtl, x, {"a": huge})
        else:
            bad_step(mtl, x, {"a": huge})
        mtl.update_prior()
        return mtl.priors()["a"].mean

    torch.testing.assert_close(prior("deferred"), prior("now"))


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_first_batch_that_is_bad_leaves_the_base_prior(
    rng: torch.Generator, structure: inference.Structure, weighted: bool
) -> None:
    head = heads.Categorical(D, 3)
    scheme = inference.TaylorGGN(structure)
    policy = priors.PreviousBatch(variance=2.0)
    mtl = ba.BayesAgg({"a": head}, inference=scheme, prior=policy, validate="deferred")
    base = mtl._slots["a"].tracker.prior
    assert base is not None
    x, labels = torch.randn(8, D, generator=rng), torch.randint(3, (8,), generator=rng)
    weight = torch.ones(8)
    if weighted:
        weight[0] = torch.nan
        mtl.collect(x, {"a": (labels, None, weight)})
    else:
        x[0, 0] = torch.inf
        mtl.collect(x, {"a": labels})
    torch.testing.assert_close(mtl.priors()["a"].mean, base.mean.double())
    torch.testing.assert_close(mtl.priors()["a"].variance, base.variance.double())
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()


def test_running_sums_do_not_fade_for_a_bad_batch(rng: torch.Generator) -> None:
    policy = priors.Running(half_life=50.0)
    mtl = ba.BayesAgg({"a": heads.Bernoulli(D, 1)}, prior=policy, validate="deferred")
    mtl.collect(*batch(rng))
    before = mtl.priors()["a"].mean.clone(), mtl.priors()["a"].variance.clone()
    bad_step(mtl, *spoilt(rng))
    torch.testing.assert_close(mtl.priors()["a"].mean, before[0])
    torch.testing.assert_close(mtl.priors()["a"].variance, before[1])


@pytest.mark.parametrize("in_place", [False, True])
def test_the_batch_before_of_wide_heads(rng: torch.Generator, in_place: bool) -> None:
    """From 96 features on a posterior is kept in blocks once its prior is dense."""
    x = torch.randn(16, 100, generator=rng)
    y = {"a": (torch.rand(16, 4, generator=rng) < 0.3).float()}

    def priors_of(mode: str) -> Tensor:
        policy = priors.PreviousBatch(in_place=in_place)
        mtl = ba.BayesAgg({"a": heads.Bernoulli(100, 4)}, prior=policy, validate=mode)  # type: ignore[arg-type]
        with torch.no_grad():
            mtl.heads["a"].weight.zero_()
        for _ in range(3):
            step(mtl, x, y)
        return mtl.priors()["a"].variance

    torch.testing.assert_close(priors_of("deferred"), priors_of("now"))


def test_where_brings_two_kinds_together(rng: torch.Generator) -> None:
    mean = torch.randn(2, 6, generator=rng).double()
    one = posteriors.DiagonalGaussian(mean, torch.full((2, 6), 3.0).double())
    other = posteriors.Gaussian(mean + 1, 2 * torch.eye(6).double()[None])
    yes, no = torch.tensor(True), torch.tensor(False)
    for new, old in ((one, other), (other, one), (one, one), (other, other)):
        for flag, expected in ((yes, new), (no, old)):
            found = posteriors.where(flag, new, old)
            torch.testing.assert_close(found.mean, expected.mean)
            torch.testing.assert_close(found.variance, expected.variance)
    samples = posteriors.Empirical(torch.randn(4, 2, 6, generator=rng).double())
    assert posteriors.where(no, samples, one) is samples  # nothing of its kind to go back to


def test_a_state_that_is_loaded_forgets_what_was_found_before(rng: torch.Generator) -> None:
    mtl = ba.BayesAgg({"a": heads.Bernoulli(D, 1)}, validate="deferred")
    state = mtl.state_dict()
    step(mtl, *spoilt(rng))
    mtl.load_state_dict(state)
    mtl.raise_deferred()
