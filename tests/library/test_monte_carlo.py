"""The sampled estimator: unbiased, chunked without a trace, right for any head."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from oracles import case, close, moments

from bayesagg_pyro import errors, gradients, heads, inference, posteriors
from bayesagg_pyro.gradients import _monte_carlo, sampled_gradients
from bayesagg_pyro.targets import Targets

MILLION = 1_000_000


def solved(rng, **kwargs):
    c = case(rng, **kwargs)
    return c, inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)


@pytest.mark.parametrize("bias", [False, True])
def test_a_million_samples_agree_within_five_standard_errors(rng, bias) -> None:
    """Mean and variance; the standard error of a variance comes from the fourth moment."""
    c, p = solved(rng, n=2, d=3, tasks=2, bias=bias, noise=0.5)
    exact = gradients.distribution(c.head, p, c.features, c.targets)
    sampled = gradients.distribution(
        c.head,
        p,
        c.features,
        c.targets,
        estimator=gradients.MonteCarlo(samples=MILLION, generator=rng),
    )
    error = (exact.variance / MILLION).sqrt()
    assert ((sampled.mean - exact.mean).abs() < 5 * error).all()
    g = exact.sample((100_000,), generator=rng) - exact.mean
    kurtosis = g.pow(4).mean(0) / g.square().mean(0).square()
    error = exact.variance * ((kurtosis - 1) / MILLION).sqrt()
    assert ((sampled.variance - exact.variance).abs() < 5 * error).all()


def test_the_sampled_covariance_agrees_too(rng) -> None:
    c, p = solved(rng, n=2, d=3, tasks=2)
    exact = gradients.distribution(c.head, p, c.features, c.targets).covariance_matrix
    mc = gradients.MonteCarlo(samples=100_000, generator=rng)
    sampled = gradients.distribution(c.head, p, c.features, c.targets, estimator=mc)
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    off = (sampled.covariance_matrix - exact) / (scale[..., None] * scale[..., None, :])
    assert off.abs().max() < 0.1


@pytest.mark.parametrize("entries", [1, 100, 1000, 2**23])
def test_chunks_leave_no_trace(rng, monkeypatch, entries) -> None:
    """Any chunk size gives the two-pass moments of all draws."""
    c, p = solved(rng, n=3, d=3, tasks=2)
    monkeypatch.setattr(_monte_carlo, "LARGE", entries)
    mc = gradients.MonteCarlo(samples=101, generator=torch.Generator().manual_seed(3))
    got = gradients.distribution(c.head, p, c.features, c.targets, estimator=mc)
    # draws of one stream, however it is cut
    again = torch.Generator().manual_seed(3)
    chunk = max(1, min(101, entries // 18))
    sizes = [min(chunk, 101 - start) for start in range(0, 101, chunk)]
    weights = torch.cat([p.sample((n,), generator=again) for n in sizes])
    g = sampled_gradients(c.head, weights, c.features, Targets(c.targets))
    close(got.mean, g.mean(0))
    close(got.variance, g.var(0, unbiased=True))


def test_float32_variance_beside_a_large_mean(rng) -> None:
    """The mean is 1e4 standard deviations from zero: E[g²] − E[g]² in float32 has no digit left."""
    p = posteriors.Gaussian(torch.full((1, 3), 10.0).double(), 1e6 * torch.eye(3).double()[None])
    features, targets = torch.randn(4, 3, generator=rng), torch.full((4, 1), 50.0)
    head = heads.Gaussian(3)
    exact = gradients.distribution(head, p, features, targets)
    mc = gradients.MonteCarlo(samples=20_000, generator=rng)
    sampled = gradients.distribution(head, p, features, targets, estimator=mc)
    assert (exact.mean.abs() / exact.variance.sqrt()).max() > 1e3
    torch.testing.assert_close(sampled.variance, exact.variance, rtol=0.08, atol=0)


def test_draws_come_from_the_given_generator_only(rng) -> None:
    c, p = solved(rng)
    state = torch.get_rng_state()

    def run(**kwargs) -> torch.Tensor:
        own = kwargs.pop("own", None)
        mc = gradients.MonteCarlo(samples=16, generator=own)
        return gradients.distribution(c.head, p, c.features, c.targets, estimator=mc, **kwargs).mean

    one = run(own=torch.Generator().manual_seed(5))
    two = run(generator=torch.Generator().manual_seed(5))
    assert torch.equal(one, two)
    other = torch.Generator().manual_seed(6)
    before = other.get_state()
    three = run(own=torch.Generator().manual_seed(5), generator=other)
    assert torch.equal(one, three)  # its own generator wins
    assert torch.equal(other.get_state(), before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("samples", [1, 0, -3])
def test_too_few_samples_are_refused(samples) -> None:
    with pytest.raises(errors.SettingError, match="at least 2"):
        gradients.MonteCarlo(samples=samples)


@pytest.mark.parametrize("noise", [0.5, [0.5, 2.0, 1.0]], ids=str)
def test_fallback_and_exact_agree_whatever_the_noise(rng, noise) -> None:
    """τ = 0.5: both differentiate (y − f)², not the likelihood."""
    c, p = solved(rng, n=3, noise=noise)
    weights = p.sample((200_000,), generator=rng)
    g = sampled_gradients(c.head, weights, c.features, Targets(c.targets))
    exact = gradients.distribution(c.head, p, c.features, c.targets)
    error = (exact.variance / len(g)).sqrt()
    assert ((g.mean(0) - exact.mean).abs() < 5 * error).all()
    torch.testing.assert_close(g.var(0), exact.variance, rtol=0.06, atol=1e-6)


def test_masked_targets_have_no_moments(rng) -> None:
    c, p = solved(rng)
    mask = torch.rand(12, 3, generator=rng) < 0.6
    targets = c.targets.where(mask, torch.tensor(float("nan")).double())
    mc = gradients.MonteCarlo(samples=64, generator=rng)
    grad = gradients.distribution(c.head, p, c.features, (targets, mask), estimator=mc)
    assert torch.equal(grad.observed, mask.T)
    hidden = ~mask.T
    assert (grad.mean[hidden] == 0).all()
    assert (grad.variance[hidden] == 0).all()
    assert (grad.mean[mask.T] != 0).all()


def test_empirical_posteriors_go_through_samples(rng) -> None:
    """Exact() has no formula for them; the default falls back and converges to the finite mean."""
    c, p = solved(rng, n=2)
    draws = p.sample((5,), generator=rng)
    empirical = posteriors.Empirical(draws)
    with pytest.raises(NotImplementedError, match=r"Gaussian.*Empirical"):
        gradients.distribution(
            c.head, empirical, c.features, c.targets, estimator=gradients.Exact()
        )
    mc = gradients.MonteCarlo(samples=20_000, generator=rng)
    grad = gradients.distribution(c.head, empirical, c.features, c.targets, estimator=mc)
    g = sampled_gradients(c.head, draws, c.features, Targets(c.targets))
    error = (g.var(0, unbiased=False) / 20_000).sqrt()
    assert ((grad.mean - g.mean(0)).abs() <= 5 * error + 1e-12).all()
    default = gradients.distribution(c.head, empirical, c.features, c.targets)
    assert default.mean.shape == (3, 2, 4)


def test_a_nonlinear_head_with_extra_weights(rng) -> None:
    """Outputs need not be linear: f = (hᵀw)³ through `forward`, checked one by one by autograd."""

    class Cubic(heads.Head):
        def likelihood(self, outputs):
            return dist.Normal(outputs, 1.0)

        def forward(self, features, weight=None):
            return super().forward(features, weight) ** 3

    head = Cubic(3, tasks=2)
    weights = torch.randn(2, 2, 3, generator=rng, dtype=torch.float64)
    features = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    targets = torch.randn(4, 2, generator=rng, dtype=torch.float64)
    got = sampled_gradients(head, weights, features, Targets(targets))
    for s in range(2):
        for t in range(2):
            h = features.clone().requires_grad_()
            f = (h @ weights[s, t]) ** 3
            (0.5 * (targets[:, t] - f) ** 2).sum().backward()
            close(got[s, t], h.grad)


def test_exact_and_sampled_return_the_features_dtype(rng) -> None:
    c, p = solved(rng, dtype=torch.float32)
    for estimator in (None, gradients.MonteCarlo(16, generator=rng)):
        grad = gradients.distribution(c.head, p, c.features, c.targets, estimator=estimator)
        assert grad.mean.dtype == grad.variance.dtype == torch.float32
        assert grad.covariance_matrix.dtype == torch.float32
        assert grad.sample((2,), generator=rng).dtype == torch.float32


def test_moments_of_exact_equal_the_paper_through_the_estimator_argument(rng) -> None:
    c, p = solved(rng)
    grad = gradients.distribution(c.head, p, c.features, c.targets, estimator=gradients.Exact())
    mean, cov = moments(p.mean, p.covariance_matrix, c.design, c.targets, 4)
    close(grad.mean, mean)
    close(grad.covariance_matrix, cov)


def test_draws_of_a_point_are_no_uncertainty(rng) -> None:
    """Sixteen equal gradients have a sample variance of rounding errors."""
    head = heads.Categorical(5, 3, tasks=3)
    features = torch.randn(8, 5, generator=rng, dtype=torch.float64)
    targets = torch.randint(3, (8, 3), generator=rng)
    p = posteriors.Point(head.point().detach())
    grad = gradients.distribution(head, p, features, targets, estimator=gradients.MonteCarlo(16))
    assert (grad.variance == 0).all()
    assert (grad.covariance_matrix == 0).all()
    assert torch.equal(grad.mean, gradients.distribution(head, p, features, targets).mean)


@pytest.mark.parametrize("draws", [3, 40])
def test_stored_draws_count_once_each_and_say_how_few_they_are(rng, draws) -> None:
    """No draw from draws: their own moments, and the standard error of so many."""
    features = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    targets = (features[:, :2] > 0).double()
    head = heads.Bernoulli(4, tasks=2, bias=False).double()

    def posterior() -> posteriors.Empirical:
        weight = torch.randn(draws, 2, 4, generator=rng, dtype=torch.float64)
        return posteriors.Empirical(0.5 * weight)

    def of(found: posteriors.Empirical) -> gradients.GradientDistribution:
        return gradients.distribution(head, found, features, targets)

    few = posterior()
    parsed = head.parse_targets(targets, len(features))
    each = sampled_gradients(head, few.samples, features, parsed)
    torch.testing.assert_close(of(few).mean, each.mean(0))
    torch.testing.assert_close(of(few).variance, each.var(0))
    means = torch.stack([of(posterior()).mean for _ in range(200)])
    error = torch.stack([of(posterior()).moment_error.mean.square() for _ in range(50)])
    ratio = (error.mean(0) / means.var(0)).mean().sqrt()
    assert abs(ratio - 1) < (0.1 if draws > 3 else 0.3)  # 16 repetitions of 3 draws know it badly
    with pytest.warns(RuntimeWarning, match=f"with {draws} the moments"):
        gradients.MonteCarlo(8, tolerance=1e-3).estimate(head, few, features, parsed)
