"""Gradient moments of counts, heavy tails, ordered classes and varying noise, to many digits."""

from __future__ import annotations

import pytest
import torch
from likelihoods import F64, gaussian, make, normal, targets_of

from bayesagg_pyro import gradients, heads, posteriors


def scaled(rng, head, features, std: float) -> posteriors.Gaussian:
    """A posterior whose predictors of these features have that standard deviation at most."""
    p = gaussian(rng, head, scale=1.0)
    widest = p.project(head.design(features)).variance.amax().sqrt()
    return posteriors.Gaussian(p.mean, p.precision_matrix * (widest / std) ** 2)


@pytest.mark.parametrize("std", [1e-4, 0.3, 1.0, 2.0])
def test_poisson_is_exact_and_quadrature_equals_it(rng, std) -> None:
    head = make("poisson")
    h, y = normal(rng, 6, 3), targets_of(rng, "poisson", 6)
    p = scaled(rng, head, h, std)
    exact = gradients.distribution(head, p, h, y, estimator=gradients.Exact())
    rule = gradients.distribution(head, p, h, y, estimator=gradients.Quadrature())
    deviation = exact.variance.sqrt()
    assert ((rule.mean - exact.mean).abs() / deviation).max() < 1e-6
    assert (rule.variance / exact.variance - 1).abs().max() < 1e-6
    scale = deviation[..., :, None] * deviation[..., None, :]
    assert ((rule.covariance_matrix - exact.covariance_matrix) / scale).abs().max() < 1e-6


def test_poisson_moments_far_out_and_in_one_dimension() -> None:
    """Against a trapezoid over the only weight, for rates from exp(−100) to exp(100)."""
    w0 = torch.linspace(-14, 14, 200_001, dtype=F64)
    mass = (-0.5 * w0.square()).exp() / (-0.5 * w0.square()).exp().sum()
    for mean in (-100.0, 0.0, 3.0, 100.0):
        head = heads.Poisson(1, bias=False).double()
        p = posteriors.Gaussian(
            torch.tensor([[mean]], dtype=F64), torch.tensor([[[4.0]]], dtype=F64)
        )
        h, y = torch.ones(1, 1).double(), torch.tensor([[2.0]]).double()
        w = mean + 0.5 * w0
        g = w * (w.exp() - 2)
        first = (mass * g).sum()
        second = (mass * (g - first).square()).sum()
        found = gradients.distribution(head, p, h, y)
        torch.testing.assert_close(found.mean[0, 0, 0], first, rtol=1e-9, atol=0)
        torch.testing.assert_close(found.variance[0, 0, 0], second, rtol=1e-7, atol=0)


@pytest.mark.parametrize("std", [1e-2, 1.0, 3.0])
@pytest.mark.parametrize(
    "name", ["negative binomial", "student", "ordinal logit", "ordinal probit"]
)
def test_quadrature_has_its_accuracy(rng, name, std) -> None:
    """32 nodes against 1,024, in units of the standard deviation and of the variance."""
    head = make(name)
    h, y = normal(rng, 6, 3), targets_of(rng, name, 6)
    p = scaled(rng, head, h, std)
    rough = gradients.distribution(head, p, h, y)
    fine = gradients.distribution(head, p, h, y, estimator=gradients.Quadrature(1024))
    assert ((rough.mean - fine.mean).abs() / fine.variance.sqrt()).max() < 2e-3
    assert (rough.variance / fine.variance - 1).abs().max() < 2e-3


@pytest.mark.parametrize("level", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("std", [0.05, 0.5, 1.5])
def test_heteroscedastic_against_a_grid_of_weights(std, level) -> None:
    """One feature and no bias: two weights, over which a trapezoid integrates autograd's gradient.

    With log-variances of standard deviation 1.5, E[g²] is carried by exp(−2s) three deviations out.
    """
    head = heads.Heteroscedastic(1, bias=False).double()
    mean = torch.tensor([0.7, level], dtype=F64)
    s = std**2 * torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=F64)
    p = posteriors.Gaussian(mean[None], torch.linalg.inv(s)[None]).replace(outputs_per_task=2)
    axis = torch.linspace(-13, 13, 1301, dtype=F64)
    z = torch.cartesian_prod(axis, axis)
    w = mean + z @ torch.linalg.cholesky(s).T
    mass = (-0.5 * z.square().sum(1)).exp()
    mass = mass / mass.sum()
    h = torch.tensor([[1.0]], dtype=F64)
    y = torch.tensor([[-0.4]], dtype=F64)
    x = h.expand(len(w), 1).clone().requires_grad_()
    head.negative_log_prob((w * x)[:, None], y).sum().backward()
    first = (mass * x.grad[:, 0]).sum()
    second = (mass * (x.grad[:, 0] - first).square()).sum()
    found = gradients.distribution(head, p, h, y)
    assert abs(found.mean[0, 0, 0] - first) < 1e-7 * second.sqrt()
    assert abs(found.variance[0, 0, 0] / second - 1) < 1e-6
    assert abs(found.covariance_matrix[0, 0, 0, 0] / second - 1) < 1e-6


def test_heteroscedastic_extremes_and_chunks(rng, monkeypatch) -> None:
    """H = 0 without a bias has no uncertain predictor; chunks of examples change nothing."""
    from bayesagg_pyro.gradients import _heteroscedastic as module

    head = heads.Heteroscedastic(3, 2, bias=False).double()
    p = gaussian(rng, head)
    h, y = normal(rng, 7, 3), normal(rng, 7, 2)
    h[0] = 0
    whole = gradients.distribution(head, p, h, y)
    delta = head.loss_derivatives(torch.zeros(2, 2).double(), y[0])  # [tasks, 2]
    expected = torch.einsum("tc,tcd->td", delta, p.mean.unflatten(-1, (2, -1)))
    torch.testing.assert_close(whole.mean[:, 0], expected)
    blocks = p.covariance_matrix.unflatten(-1, (2, -1)).unflatten(-3, (2, -1))
    variance = torch.einsum("tc,te,tcded->td", delta, delta, blocks)
    torch.testing.assert_close(whole.variance[:, 0], variance)
    monkeypatch.setattr(module, "CACHE", 1)
    parts = gradients.distribution(head, p, h, y)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.variance, whole.variance)
    torch.testing.assert_close(parts.covariance_matrix, whole.covariance_matrix)
    far = p.with_mean(torch.full_like(p.mean, 100.0))
    assert gradients.distribution(head, far, torch.ones(1, 3).double(), y[:1]).mean.isfinite().all()


def test_masks_and_dtypes(rng) -> None:
    for name in ("poisson", "heteroscedastic"):
        head = make(name).float()
        h, y = normal(rng, 4, 3).float(), targets_of(rng, name, 4).float()
        mask = torch.tensor([[True, False]] * 4)
        found = gradients.distribution(head, gaussian(rng, head), h, (y, mask))
        assert found.mean.dtype == torch.float32
        assert (found.mean[1] == 0).all()
        assert (found.variance[0] > 0).all()
