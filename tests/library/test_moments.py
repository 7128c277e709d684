"""Moments of a Gaussian head's gradient against three independent roads to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import case, close, cubature, moments

from bayesagg_pyro import gradients, heads, inference, posteriors
from bayesagg_pyro.gradients import sampled_gradients
from bayesagg_pyro.targets import Targets

NOISES = [1.0, 0.5, [0.3, 1.0, 2.5]]


def solved(rng, **kwargs):
    c = case(rng, **kwargs)
    return c, inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_equal_the_papers_formula(rng, noise, bias, shared) -> None:
    c, p = solved(rng, noise=noise, bias=bias, shared=shared)
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    covariance = p.covariance_matrix.expand(3, -1, -1)
    mean, cov = moments(p.mean, covariance, c.design, c.targets, 4)
    close(grad.mean, mean)
    close(grad.covariance_matrix, cov)
    close(grad.variance, cov.diagonal(dim1=-2, dim2=-1))
    assert grad.mean.shape == grad.variance.shape == (3, 12, 4)
    assert grad.tasks == 3
    assert grad.observed is None


@given(
    n=st.integers(1, 8),
    d=st.integers(1, 5),
    tasks=st.integers(1, 3),
    bias=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 999),
)
def test_equal_the_papers_formula_for_any_size(n, d, tasks, bias, scale, seed) -> None:
    c, p = solved(torch.Generator().manual_seed(seed), n=n, d=d, tasks=tasks, bias=bias)
    features = c.features * scale
    c.features = features
    grad = gradients.distribution(c.head, p, features, c.targets)
    mean, cov = moments(p.mean, p.covariance_matrix, c.design, c.targets, d)
    close(grad.mean, mean, 1e-9)
    close(grad.covariance_matrix, cov, 1e-9)
    assert (grad.variance >= 0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_equal_an_exact_cubature_of_autograds_gradients(rng, bias) -> None:
    """Degree 4 in w, so 3^D points integrate g gᵀ exactly; torch differentiates the loss."""
    c, p = solved(rng, n=3, d=3, tasks=2, bias=bias, noise=0.5)
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    for t in range(2):
        points, mass = cubature(p.mean[t], p.covariance_matrix[t])
        for b in range(3):
            h = c.features[b].expand(len(points), -1).clone().requires_grad_()
            full = torch.cat([h, torch.ones(len(h), 1).double()], 1) if bias else h
            ((c.targets[b, t] - (full * points).sum(1)) ** 2).sum().backward()
            mean = mass @ h.grad
            centred = h.grad - mean
            close(grad.mean[t, b], mean)
            close(grad.covariance_matrix[t, b], (centred * mass[:, None]).T @ centred)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_each_sample_is_autograds_gradient(rng, bias, masked) -> None:
    """One example, one task, one weight vector at a time through torch.autograd.grad."""
    c, p = solved(rng, n=4, tasks=2, bias=bias, noise=0.5)
    mask = torch.rand(4, 2, generator=rng) < 0.5 if masked else None
    weights = p.sample((3,), generator=rng)
    got = sampled_gradients(c.head, weights, c.features, Targets(c.targets, mask))
    assert got.shape == (3, 2, 4, 4)
    for s in range(3):
        for t in range(2):
            for b in range(4):
                h = c.features[b].clone().requires_grad_()
                full = torch.cat([h, torch.ones(1).double()]) if bias else h
                loss = (c.targets[b, t] - full @ weights[s, t]) ** 2
                (expected,) = torch.autograd.grad(loss, h)
                if mask is not None and not mask[b, t]:
                    expected = torch.zeros_like(expected)
                close(got[s, t, b], expected)


def test_samples_of_the_distribution_are_gradients_at_the_posteriors_draws(rng) -> None:
    c, p = solved(rng)
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    drawn = grad.sample((2, 3), generator=torch.Generator().manual_seed(7))
    assert drawn.shape == (2, 3, 3, 12, 4)
    weights = p.sample((6,), generator=torch.Generator().manual_seed(7))
    r = torch.einsum("bd,std->sbt", c.features, weights) - c.targets
    expected = 2 * torch.einsum("std,sbt->stbd", weights, r)
    close(drawn.reshape(6, 3, 12, 4), expected)


def test_noise_changes_the_posterior_but_not_the_loss(rng) -> None:
    """The loss is (y − f)² whatever τ is: for one posterior the moments do not see τ."""
    c, p = solved(rng)
    one = gradients.distribution(c.head, p, c.features, c.targets)
    other = gradients.distribution(
        heads.Gaussian(4, tasks=3, noise_scale=0.5), p, c.features, c.targets
    )
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.variance, other.variance)


def test_a_point_posterior_gives_back_propagation(rng) -> None:
    c = case(rng)
    p = posteriors.Gaussian(c.prior.mean, 1e16 * torch.eye(4).double()[None])
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    h = c.features.clone().requires_grad_()
    ((c.targets - h @ p.mean.T) ** 2)[:, 1].sum().backward()
    close(grad.mean[1], h.grad)
    assert grad.variance.max() < 1e-12


def test_masked_targets_have_no_moments(rng) -> None:
    c, p = solved(rng)
    mask = torch.rand(12, 3, generator=rng) < 0.6
    poisoned = c.targets.where(mask, torch.tensor(float("nan")).double())
    grad = gradients.distribution(c.head, p, c.features, (poisoned, mask))
    mean, cov = moments(p.mean, p.covariance_matrix, c.design, c.targets, 4)
    seen = mask.T[..., None]
    close(grad.mean, torch.where(seen, mean, 0.0))
    close(grad.variance, torch.where(seen, cov.diagonal(dim1=-2, dim2=-1), 0.0))
    close(grad.covariance_matrix, torch.where(seen[..., None], cov, 0.0))
    assert grad.observed is not None
    assert torch.equal(grad.observed, mask.T)


def test_the_full_covariance_is_never_built_by_itself(rng, monkeypatch) -> None:
    """Nothing of size [T, B, d, d], and nothing else of that many entries, unless asked for."""
    c, p = solved(rng, n=64, d=48, tasks=2)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        grad = gradients.distribution(c.head, p, c.features, c.targets)
    assert largest <= 2 * 64 * 48
    with Watch():
        _ = grad.covariance_matrix
    assert largest >= 2 * 64 * 48 * 48


def test_moments_do_not_carry_graphs(rng) -> None:
    c, p = solved(rng)
    features = c.features.clone().requires_grad_()
    grad = gradients.distribution(c.head, p, features, c.targets)
    assert not grad.mean.requires_grad
    assert not grad.covariance_matrix.requires_grad
    assert not grad.sample((2,)).requires_grad
    assert features.grad is None
    assert c.head.weight.grad is None
