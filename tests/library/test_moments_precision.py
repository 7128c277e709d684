"""Moments in float32, and where numbers are huge, tiny, collinear or absent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import case, close, moments

from bayesagg_pyro import aggregation, gradients, heads, inference, posteriors, priors


def test_float32_with_a_tight_posterior(rng) -> None:
    """|h| about 5, posterior variances about 1e-5: E[gg] − E[g]² in float32 is off by 19 % here."""
    d, tasks, n = 25, 11, 120
    features = torch.randn(n, d, generator=rng)  # |h| about 5
    basis = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64)).Q
    spread = torch.logspace(-5.5, -4.5, d, dtype=torch.float64)
    covariance = basis @ spread.diag() @ basis.T
    mean = torch.randn(tasks, d, generator=rng, dtype=torch.float64)
    precision = torch.linalg.inv(covariance)
    p = posteriors.Gaussian(mean, ((precision + precision.T) / 2)[None])
    targets = (features.double() @ mean.T).float() + torch.randn(n, tasks, generator=rng)
    grad = gradients.distribution(heads.Gaussian(d, tasks=tasks), p, features, targets)
    assert grad.mean.dtype == grad.variance.dtype == torch.float32
    rows = slice(0, 6)
    expected, cov = moments(
        mean, covariance.expand(tasks, d, d), features[rows].double(), targets[rows].double(), d
    )
    variance = cov.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(grad.mean[:, rows].double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad.variance[:, rows].double(), variance, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    exponent=st.integers(-10, 10),
    n=st.integers(1, 12),
    bias=st.booleans(),
    kind=st.sampled_from(["plain", "collinear", "dead", "zero"]),
    seed=st.integers(0, 99),
)
def test_finite_at_any_scale(dtype, exponent, n, bias, kind, seed) -> None:
    """Posterior, moments and direction for features × 1e-10 … 1e10, degenerate or not."""
    rng = torch.Generator().manual_seed(seed)
    d = 6
    features = torch.randn(n, d, generator=rng, dtype=torch.float64)
    if kind == "collinear":
        features[:, 1:4] = features[:, :1]
    elif kind == "dead":
        features[:, 2:] = 0
    elif kind == "zero":
        features.zero_()
    features = (features * 10.0**exponent).to(dtype)
    targets = torch.randn(n, 3, generator=rng).to(dtype)
    head = heads.Gaussian(d, tasks=3, bias=bias)
    p = inference.Conjugate().infer(head, features, targets, priors.isotropic(head, 1.0))
    for tensor in (p.mean, p.covariance_matrix, p.variance):
        assert tensor.isfinite().all()
    assert (p.variance > 0).all()
    grad = gradients.distribution(head, p, features, targets)
    assert grad.mean.isfinite().all()
    assert grad.variance.isfinite().all()
    assert (grad.variance >= 0).all()
    for rule in (
        aggregation.PrecisionWeighted.paper(1.0),
        aggregation.PrecisionWeighted.paper([0.0, 0.5, 1.0]),
        aggregation.PrecisionWeighted(0.7, resolution="dimension"),
        aggregation.PrecisionWeighted(0.7, resolution="task"),
    ):
        result = rule.aggregate(grad)
        assert result.direction.isfinite().all()
        assert result.weights is not None
        close(result.weights.sum(0).double(), torch.ones_like(result.weights[0]).double(), 1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_right_not_only_finite_for_scaled_features(rng, scale, dtype) -> None:
    """With the features × c and the weights' prior × 1/c, weights and gradients scale by 1/c."""
    c = case(rng, n=20, d=5)
    features, targets = c.features.to(dtype), c.targets.to(dtype)
    scaled = (features.double() * scale).to(dtype)
    base = features if dtype == torch.float64 else (scaled.double() / scale)
    prior = posteriors.Gaussian(c.prior.mean / scale, c.prior.precision_matrix * scale**2)
    plain = inference.Conjugate().infer(c.head, base, targets, c.prior)
    large = inference.Conjugate().infer(c.head, scaled, targets, prior)
    close(large.mean * scale, plain.mean, 1e-9)
    one = gradients.distribution(c.head, plain, base.double(), targets.double())
    two = gradients.distribution(c.head, large, scaled, targets)
    close(two.mean.double() * scale, one.mean, 1e-9 if dtype == torch.float64 else 1e-5)
    close(two.variance.double() * scale**2, one.variance, 1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_right_for_scaled_features_with_the_same_prior(rng, scale) -> None:
    c = case(rng, n=3, d=5)
    c.features *= scale
    c.features[:, 1] = c.features[:, 0]
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    # the same posterior in the dual form, which inverts 3 × 3 and never meets the singular HᵀH
    for t in range(3):
        s = torch.linalg.inv(c.prior.precision_matrix[t])
        h, y, m = c.features, c.targets[:, t], c.prior.mean[t]
        gain = torch.linalg.solve(h @ s @ h.T + torch.eye(3).double(), h @ s).T
        close(p.mean[t], m + gain @ (y - h @ m), 1e-7)
        close(p.covariance_matrix[t], s - gain @ h @ s, 1e-7)
    assert grad.variance.isfinite().all()


def test_all_features_dead(rng) -> None:
    """Where h = 0, the posterior is the prior, the loss' gradient is −2 y w."""
    head = heads.Gaussian(4, tasks=2)
    features, targets = torch.zeros(5, 4), torch.randn(5, 2, generator=rng)
    targets[0] = 0
    p = inference.Conjugate().infer(head, features, targets, priors.isotropic(head, 0.3))
    close(p.variance, torch.full((2, 4), 0.3, dtype=torch.float64))
    grad = gradients.distribution(head, p, features, targets)
    assert (grad.mean == 0).all()
    expected = 4 * 0.3 * targets.double().square().T[..., None].expand(2, 5, 4)
    close(grad.variance.double(), expected, 1e-6)
    result = aggregation.PrecisionWeighted.paper().aggregate(grad)
    assert (result.direction == 0).all()
    close(result.weights[:, 0], torch.full((2, 4), 0.5))  # h = 0 and y = 0: equal shares


def test_the_variance_survives_a_mean_that_dwarfs_it(rng) -> None:
    """|E g| is 1e7 times the standard deviation: nothing large may be subtracted."""
    d = 3
    covariance = 1e-12 * torch.eye(d, dtype=torch.float64)
    p = posteriors.Gaussian(torch.full((1, d), 2.0).double(), torch.linalg.inv(covariance)[None])
    features = torch.tensor([[1.0, -2.0, 3.0]])
    targets = torch.tensor([[-5.0]])
    grad = gradients.distribution(heads.Gaussian(d), p, features, targets)
    # S tiny: Var = 4 (S r² + m² v + 2 m r c) with r = 4 + 5 = 9, v = 14 s, c = h s, to first order
    s, r = 1e-12, 9.0
    h = features[0].double()
    expected = 4 * (s * r**2 + 4 * 14 * s + 2 * 2 * r * h * s)
    torch.testing.assert_close(grad.variance[0, 0].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [heads.Gaussian, heads.Poisson, heads.StudentT])
def test_a_variance_below_the_smallest_number_is_no_certainty(kind) -> None:
    """Var[g] is about 1e-48 here, 0 in float32."""
    head = kind(2, bias=False)
    p = posteriors.DiagonalGaussian(torch.zeros(1, 2), torch.full((1, 2), 4.0))
    features = torch.full((3, 2), 1e-25)
    y = torch.ones(3, 1) if kind is heads.Poisson else torch.full((3, 1), 1e-24)
    assert (gradients.distribution(head, p, features, y).variance > 0).all()
    points = inference.Delta().infer(head, features, y, priors.isotropic(head, 1.0))
    assert (gradients.distribution(head, points, features, y).variance == 0).all()
