"""Conjugate inference against the paper's eq. reg_post in dense float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import case, close, posterior

from bayesagg_pyro import errors, heads, inference, posteriors, priors

NOISES = [1.0, 0.5, [0.3, 1.0, 2.5]]


def dense(c, observed=None):
    covariance = torch.linalg.inv(c.prior.precision_matrix).expand(c.head.tasks, -1, -1)
    return posterior(
        c.design.double(), c.targets.double(), c.noise, c.prior.mean, covariance, observed
    )


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_dense_formula(rng, noise, bias, shared, masked) -> None:
    c = case(rng, bias=bias, noise=noise, shared=shared)
    observed = torch.rand(c.targets.shape, generator=rng) < 0.6 if masked else None
    targets = (c.targets, observed) if masked else c.targets
    got = inference.Conjugate().infer(c.head, c.features, targets, c.prior)
    mean, covariance = dense(c, observed)
    close(got.mean, mean)
    close(got.covariance_matrix.expand_as(covariance), covariance)
    close(got.variance, covariance.diagonal(dim1=-2, dim2=-1))
    close(got.precision_matrix.expand_as(covariance), torch.linalg.inv(covariance), 1e-9)
    common = shared and not masked and isinstance(noise, float)
    assert got.covariance_matrix.shape[0] == (1 if common else 3)  # like tasks share one matrix
    assert got.mean.shape == got.variance.shape == (3, c.design.shape[1])


@given(n=st.integers(1, 20), d=st.integers(1, 6), tasks=st.integers(1, 4), seed=st.integers(0, 99))
def test_equals_the_dense_formula_for_any_size(n: int, d: int, tasks: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    c = case(rng, n, d, tasks, bias=bool(seed % 2))
    got = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    mean, covariance = dense(c)
    close(got.mean, mean)
    close(got.covariance_matrix, covariance)


def test_prior_variance_per_task(rng) -> None:
    c = case(rng)
    variances = [0.01, 1.0, 30.0]
    for given_variance in (variances, torch.tensor(variances)):
        prior = priors.isotropic(c.head, given_variance)
        expected = torch.tensor(variances).double()[:, None, None] * torch.eye(4).double()
        close(prior.covariance_matrix, expected, 1e-7)  # a float32 tensor holds 0.01 to 1e-8
        close(prior.mean, torch.zeros(3, 4).double())
    c.prior = priors.isotropic(c.head, variances)
    got = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    mean, covariance = dense(c)
    close(got.mean, mean)
    close(got.covariance_matrix, covariance)


def test_isotropic_prior_covers_the_bias() -> None:
    prior = priors.isotropic(heads.Gaussian(3, tasks=2, bias=True), variance=5e-3)
    close(prior.variance, torch.full((2, 4), 5e-3, dtype=torch.float64), 1e-15)


@pytest.mark.parametrize("cuts", [(6,), (1, 11), (3, 4, 5)])
def test_a_posterior_serves_as_a_prior(rng, cuts) -> None:
    """Batches one after the other give what the whole gives at once."""
    c = case(rng, noise=[0.3, 1.0, 2.0], bias=True)
    whole = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    chained: posteriors.Posterior = c.prior
    bounds = [0, *cuts, 12]
    for start, stop in pairwise(bounds):
        if start < stop:
            chained = inference.Conjugate().infer(
                c.head, c.features[start:stop], c.targets[start:stop], chained
            )
    close(chained.mean, whole.mean)
    close(chained.covariance_matrix, whole.covariance_matrix)


def test_order_of_examples_and_of_tasks_does_not_matter(rng) -> None:
    c = case(rng, noise=[0.3, 1.0, 2.0])
    whole = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    rows = torch.randperm(12, generator=rng)
    again = inference.Conjugate().infer(c.head, c.features[rows], c.targets[rows], c.prior)
    close(again.mean, whole.mean)
    tasks = torch.tensor([2, 0, 1])
    head = heads.Gaussian(4, tasks=3, noise_scale=[2.0, 0.3, 1.0])
    prior = posteriors.Gaussian(c.prior.mean[tasks], c.prior.precision_matrix[tasks])
    turned = inference.Conjugate().infer(head, c.features, c.targets[:, tasks], prior)
    close(turned.mean, whole.mean[tasks])
    close(turned.covariance_matrix, whole.covariance_matrix[tasks])


def test_float32_input_loses_nothing_but_its_own_rounding(rng) -> None:
    c = case(rng, dtype=torch.float32)
    got = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    assert got.mean.dtype == torch.float64
    mean, covariance = dense(c)
    close(got.mean, mean)
    close(got.covariance_matrix, covariance)


def test_tight_prior_next_to_a_small_batch(rng) -> None:
    """The prior of the paper: a precision of 1e5 beside a batch of 1e2 (float32 loses this)."""
    c = case(rng, n=120, d=16, tasks=2, dtype=torch.float32)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=rng, dtype=torch.float64)).Q
    spectrum = torch.logspace(0, 5.5, 16, dtype=torch.float64)
    precision = basis @ spectrum.diag() @ basis.T
    mean = torch.randn(2, 16, generator=rng, dtype=torch.float64)
    c.prior = posteriors.Gaussian(mean, ((precision + precision.T) / 2)[None])
    got = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    expected, _ = dense(c)
    close(got.mean, expected, 1e-9)


def test_fewer_examples_than_features_and_dead_features(rng) -> None:
    c = case(rng, n=3, d=6)
    c.features[:, 2] = 0
    c.features[:, 4] = c.features[:, 3]
    c.prior = priors.isotropic(c.head, 2.0)
    got = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    mean, covariance = dense(c)
    close(got.mean, mean)
    close(got.covariance_matrix.expand(3, -1, -1), covariance)
    close(got.variance[:, 2], torch.full((3,), 2.0).double())  # no data: the prior
    close(got.mean[:, 2], torch.zeros(3).double())
    assert got.info.jitter.max() == 0


def test_a_task_without_any_target_keeps_its_prior(rng) -> None:
    c = case(rng)
    observed = torch.ones_like(c.targets, dtype=torch.bool)
    observed[:, 1] = False
    got = inference.Conjugate().infer(c.head, c.features, (c.targets, observed), c.prior)
    close(got.mean[1], c.prior.mean[1])
    close(got.precision_matrix[1], c.prior.precision_matrix[1])


def test_infer_leaves_everything_as_it_was(rng) -> None:
    c = case(rng)
    features = c.features.clone().requires_grad_()
    before = [features.detach().clone(), c.targets.clone(), c.prior.mean.clone()]
    state = torch.get_rng_state()
    got = inference.Conjugate().infer(c.head, features, c.targets, c.prior)
    assert not got.mean.requires_grad
    assert features.grad is None
    assert c.head.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    for old, new in zip(before, [features, c.targets, c.prior.mean], strict=True):
        assert torch.equal(old, new)


def test_another_mean_has_the_same_shape(rng) -> None:
    posterior = posteriors.Gaussian(torch.zeros(3, 4), torch.eye(4)[None])
    moved = posterior.with_mean(torch.ones(3, 4))
    assert moved.precision_matrix is posterior.precision_matrix
    assert posterior.mean.sum() == 0
    with pytest.raises(errors.ShapeError, match=r"must have shape \[3, 4\], not \[5, 4\]"):
        posterior.with_mean(torch.ones(5, 4))
