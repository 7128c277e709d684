"""What a policy refuses, before anything has changed."""

from __future__ import annotations

import pytest
import torch
from setups import Run, gaussian

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, priors

BAD = {
    "variance": (lambda: priors.FullData([1.0, 0.0]), "prior variance"),
    "temperature": (lambda: priors.FullData(temperature=0.0), "temperature"),
    "infinite heat": (lambda: priors.Running(5, temperature=float("inf")), "temperature"),
    "half life": (lambda: priors.Running(0), "half_life"),
    "refresh": (lambda: priors.Running(5, refresh=0), "refresh"),
    "forgetting": (lambda: priors.PreviousBatch(1.5), "forgetting"),
    "examples": (lambda: priors.Fresh(0), "examples must be"),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_settings_out_of_range(make, text) -> None:
    with pytest.raises(errors.SettingError, match=text):
        make()


def test_batches_are_asked_for_and_not_wasted(rng) -> None:
    run = Run(rng, "conjugate", priors.Fresh())
    with pytest.raises(errors.StateError, match=r"priors of \['a'\] are made of fresh batches"):
        run.mtl.update_prior()
    other = Run(rng, "conjugate", priors.FullData())
    other.step(*next(other.batches()))
    with pytest.raises(errors.StateError, match=r"use priors.Fresh\(\)"):
        other.mtl.update_prior(batches=other.batches())
    other.mtl.update_prior()  # what was collected is still there


def test_bad_batches_leave_the_prior_alone(rng) -> None:
    run = Run(rng, "conjugate", priors.Fresh())
    run.update()
    before = run.mtl.priors()["a"]
    good = list(run.batches())
    with pytest.raises(errors.DtypeError, match="pairs"):
        run.mtl.update_prior(batches=[run.data.features])
    with pytest.raises(errors.TaskError, match="leave the batch out"):
        run.mtl.update_prior(batches=[(run.data.features, {})])
    with pytest.raises(errors.NonFiniteError):
        run.mtl.update_prior(batches=[good[0], (good[1][0] * torch.nan, good[1][1])])
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        run.mtl.update_prior(batches=[])
    assert run.mtl.priors()["a"] is before
    run.update()
    torch.testing.assert_close(run.mtl.priors()["a"].mean, before.mean)


def test_deferred_validation_finds_bad_batches(rng) -> None:
    data = gaussian(rng)
    mtl = ba.BayesAgg({"a": data.head}, prior=priors.Fresh(), validate="deferred")
    with pytest.raises(errors.NonFiniteError):
        mtl.update_prior(batches=[(data.features * torch.nan, {"a": data.targets})])


def test_a_deferred_bad_batch_does_not_poison_a_prior(rng) -> None:
    for policy in (priors.PreviousBatch(), priors.Running(30), priors.FullData()):
        data = gaussian(rng)
        mtl = ba.BayesAgg({"a": data.head}, prior=policy, validate="deferred")
        mtl.backward(data.features.clone().requires_grad_(), {"a": data.targets})
        mtl.backward((data.features * torch.nan).requires_grad_(), {"a": data.targets})
        with pytest.raises(errors.NonFiniteError):
            mtl.update_prior()
        mtl.update_prior()
        assert torch.isfinite(mtl.priors()["a"].mean).all()
        assert (mtl.priors()["a"].mean != 0).any()


def test_running_needs_sums() -> None:
    class Mine(inference.Scheme):
        def infer(self, head, features, targets, prior, *, start=None, generator=None):
            return prior

        def __repr__(self):
            return "Mine()"

    with pytest.raises(errors.SettingError, match=r"needs sums that can fade, but Mine\(\)"):
        priors.Running(10).start(heads.Bernoulli(3), Mine())


@pytest.mark.parametrize("scheme", [inference.IntegratedNoise(), inference.Delta()])
def test_previous_batch_needs_gaussian_posteriors(scheme) -> None:
    with pytest.raises(errors.DtypeError, match="needs Gaussian posteriors"):
        priors.PreviousBatch().start(heads.Gaussian(3), scheme)


@pytest.mark.parametrize("refresh", ["step", "epoch"])
def test_previous_batch_needs_posteriors_that_are_priors(refresh) -> None:
    """In the constructor, not at the second batch."""
    scheme = inference.LaplaceTorch(refresh=refresh)
    with pytest.raises(errors.SettingError, match="would be the next ones"):
        priors.PreviousBatch().start(heads.Bernoulli(3), scheme)


def test_a_base_must_be_a_prior_of_the_head() -> None:
    conjugate = inference.Conjugate()
    other = heads.Gaussian(5)
    with pytest.raises(errors.SettingError, match="base must return a Gaussian prior"):
        priors.FullData(base=lambda head: 1.0).start(heads.Gaussian(3), conjugate)
    with pytest.raises(errors.ShapeError, match="base prior"):
        priors.FullData(base=lambda head: priors.isotropic(other, 1.0)).start(
            heads.Gaussian(3), conjugate
        )


def test_predictions_wait_for_a_posterior(rng) -> None:
    run = Run(rng, "conjugate", priors.Constant())
    with pytest.raises(errors.StateError, match="no posterior yet"):
        run.mtl.predictive(run.data.features)
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        run.mtl.update_prior()


def test_copies_need_the_same_structure() -> None:
    head = heads.Gaussian(3, 2)
    dense = priors.dense(head, torch.eye(3))
    with pytest.raises(errors.ShapeError, match="cannot be written into"):
        dense.copy_(priors.isotropic(head, 1.0))


POLICIES = [
    priors.FullData(),
    priors.Running(5),
    priors.PreviousBatch(),
    priors.Fresh(),
    priors.FullData("learned"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_no_prior_is_made_of_nothing(policy) -> None:
    tracker = policy.start(heads.Gaussian(3), inference.Conjugate())
    before = tracker.prior
    with pytest.raises(errors.StateError, match=r"head .* no data has been collected"):
        tracker.update()
    assert tracker.prior is before
