"""Deferred validation and posteriors that outlive a step: which one is held.

A posterior is held where the scheme is refreshed every so many steps, or starts from the last one.
A bad batch at a refresh must leave the one from before, not the prior, and not what it made.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

D = 3
BAD = ["features", "targets", "overflow"]


class Shifted(inference.Iterative):
    """The prior moved to the features' mean: of which batch a posterior is can be read off it."""

    def __init__(self, refresh: Any, samples: bool = False) -> None:
        super().__init__(refresh=refresh)
        self.samples = samples
        self.starts: list[Tensor | None] = []

    def fit(self, joint, start, generator):
        self.starts.append(None if start is None else start.mean.clone())
        mean = joint.features.mean().expand_as(joint.prior.mean).clone()
        if self.samples:
            return posteriors.Empirical(torch.stack([mean - 1, mean + 1]))
        return posteriors.DiagonalGaussian(mean, torch.ones_like(mean))


def batch(number: int, bad: str | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Features of mean `number`, and targets."""
    rng = torch.Generator().manual_seed(number)
    h = torch.randn(8, D, generator=rng, dtype=torch.float64)
    h += number - h.mean()
    y = torch.randn(8, 2, generator=rng, dtype=torch.float64)
    if bad == "features":
        h[2, 1] = torch.nan
    elif bad == "targets":
        y[5, 0] = torch.inf
    elif bad == "overflow":  # finite, but its loss is not
        y[5, 0] = 1e200
    return h, {"a": y}


def engine(scheme: inference.Scheme, mode: str) -> ba.BayesAgg:
    mtl = ba.BayesAgg(
        {"a": heads.Gaussian(D, 2)},
        inference=scheme,
        prior=priors.Constant(1.0),
        validate=mode,  # type: ignore[arg-type]
        keep_gradients=True,
        generator=torch.Generator().manual_seed(0),
    ).double()
    mtl.collect(*batch(0))
    mtl.update_prior()
    mtl.start_bayes()
    return mtl


def step(mtl: ba.BayesAgg, number: int, bad: str | None = None) -> float:
    """The mean of the posterior that the step used; NaN where it was that of a bad batch."""
    h, y = batch(number, bad)
    h.requires_grad_()
    mtl.backward(h, y)
    assert bad is None or (h.grad == 0).all()
    return float(mtl.info.stages.posteriors["a"].mean[0, 0])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("samples", [False, True])
def test_a_bad_batch_at_a_refresh_leaves_the_posterior_from_before(bad, samples) -> None:
    mtl = engine(Shifted(2, samples), "deferred")
    assert [step(mtl, 1), step(mtl, 2)] == pytest.approx([1, 1])  # made by 1, held over 2
    step(mtl, 3, bad)  # a refresh
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()
    assert step(mtl, 4) == pytest.approx(1)  # neither the prior's 0, nor that of batch 3
    assert not mtl.info.inferred["a"]
    assert [step(mtl, 5), step(mtl, 6)] == pytest.approx([5, 5])  # and good ones replace it


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_batch_between_refreshes_changes_nothing(bad) -> None:
    mtl = engine(Shifted(3), "deferred")
    assert step(mtl, 1) == pytest.approx(1)
    step(mtl, 2, bad)
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()
    assert [step(mtl, 3), step(mtl, 4)] == pytest.approx([1, 4])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_starts_from_the_last_posterior_never_starts_from_a_bad_one(bad, before) -> None:
    """Where there was none yet, the start is the prior."""
    scheme = Shifted("step")
    mtl = engine(scheme, "deferred")
    scheme.starts.clear()
    for number in range(1, before + 1):
        step(mtl, number)
    step(mtl, 7, bad)
    step(mtl, 8)
    step(mtl, 9)
    starts = [None if one is None else float(one[0, 0]) for one in scheme.starts]
    good = [None, *range(1, before + 1)]
    assert starts[: before + 1] == [None if one is None else pytest.approx(one) for one in good]
    assert starts[before + 1 :] == pytest.approx([before, 8])


@pytest.mark.parametrize(
    "scheme",
    [
        # Adam makes whole steps of a gradient that is rounding alone.
        inference.Variational(steps=5, particles=2, learning_rate=1e-9, refresh=2),
        inference.Variational(steps=5, particles=2, learning_rate=1e-9, refresh="step"),
        inference.Laplace(),
        inference.Ensemble(4, refresh=2),
    ],
    ids=repr,
)
def test_good_batches_hold_the_same_in_both_modes(scheme) -> None:
    found = []
    for mode in ("now", "deferred"):
        torch.manual_seed(0)
        mtl = engine(scheme, mode)
        found.append([step(mtl, number) for number in range(1, 6)])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert len(set(found[0])) == (3 if scheme.refresh == 2 else 5)


def test_a_scheme_that_forgets_is_not_held_back_by_a_bad_batch() -> None:
    """Conjugate posteriors are made anew in each step: after the bad one, that of the good one."""
    found = []
    for bad in (None, "features"):
        mtl = engine(inference.Conjugate(), "deferred")
        step(mtl, 1)
        step(mtl, 2, bad)
        found.append(step(mtl, 3))
    assert found[0] == found[1]


@pytest.mark.parametrize("bad", BAD)
def test_now_leaves_posterior_and_age_where_they_were(bad) -> None:
    mtl = engine(Shifted(2), "now")
    assert step(mtl, 1) == pytest.approx(1)
    for _ in range(3):
        with pytest.raises(errors.NonFiniteError):
            step(mtl, 2, bad)
    assert [step(mtl, 3), step(mtl, 4)] == pytest.approx([1, 4])


def test_an_estimator_reads_the_posterior_that_is_held() -> None:
    """The gradient of a step between refreshes is that of the held posterior at its own batch."""
    mtl = engine(Shifted(2), "deferred")
    step(mtl, 1)
    step(mtl, 2)
    h, y = batch(2)
    mean = torch.ones(2, D + 1, dtype=torch.float64)[:, : mtl.heads["a"].weight_size]
    held = posteriors.DiagonalGaussian(mean, torch.ones_like(mean))
    expected = gradients.distribution(mtl.heads["a"], held, h, y["a"])
    torch.testing.assert_close(mtl.info.gradients.mean, expected.mean)
    torch.testing.assert_close(mtl.info.gradients.variance, expected.variance)
