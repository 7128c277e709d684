"""Entropies and Kullback-Leibler divergences, against torch's own dense ones and draws."""

from __future__ import annotations

import pytest
import torch
from oracles import close, spd
from torch.distributions import MultivariateNormal, kl_divergence

from bayesagg_pyro import errors, linalg, posteriors

TASKS, C, D = 3, 2, 3
P = C * D
F64 = torch.float64
KINDS = ("dense", "shared", "blocked", "packed", "diagonal", "common", "low rank", "Kronecker")


def make(kind: str, scale: float, rng: torch.Generator) -> posteriors.GaussianFamily:
    """A Gaussian whose variances are about `scale`."""
    mean = torch.randn(TASKS, P, generator=rng, dtype=F64) * scale**0.5
    positive = torch.rand(TASKS, P, generator=rng, dtype=F64) + 0.1
    if kind == "diagonal":
        return posteriors.DiagonalGaussian(mean, positive / scale)
    if kind == "common":
        return posteriors.DiagonalGaussian(mean, positive[:1] / scale)
    if kind == "low rank":
        factor = torch.randn(TASKS, P, 2, generator=rng, dtype=F64) * scale**0.5
        return posteriors.LowRankGaussian(mean, factor, positive * scale)
    if kind == "Kronecker":
        return posteriors.KroneckerGaussian(
            mean,
            spd(rng, TASKS, C) / scale,
            spd(rng, 1, D),
            torch.full((TASKS,), 5.0, dtype=F64),
            torch.full((1,), 1 / scale, dtype=F64),
        )
    precision = spd(rng, 1 if kind == "shared" else TASKS, P) / scale
    if kind == "blocked":
        return posteriors.BlockedGaussian(mean, *linalg.split_rows(precision))
    dense = posteriors.Gaussian(mean, precision)
    return posteriors.PackedGaussian.pack(dense, F64) if kind == "packed" else dense


def reference(p: posteriors.GaussianFamily) -> MultivariateNormal:
    return MultivariateNormal(p.mean, p.covariance_matrix.expand(TASKS, P, P))


@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scales", [(1e-10, 1e-10), (1.0, 1.0), (1e-10, 1e10), (1e10, 1e-10)])
def test_divergence_equals_torchs(kind, other, scales, rng) -> None:
    p, q = make(kind, scales[0], rng), make(other, scales[1], rng)
    found = kl_divergence(p, q)
    assert found.shape == (TASKS,)
    torch.testing.assert_close(found, kl_divergence(reference(p), reference(q)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e10])
def test_entropy_equals_torchs(kind, scale, rng) -> None:
    p = make(kind, scale, rng)
    close(p.entropy(), reference(p).entropy())


@pytest.mark.parametrize("kind", KINDS)
def test_a_distribution_is_not_apart_from_itself(kind, rng) -> None:
    p = make(kind, 1.0, rng)
    found = kl_divergence(p, p)
    assert (found >= 0).all()
    assert (found < 1e-13).all()


def test_nearly_equal_precisions_keep_their_digits(rng) -> None:
    """KL = Σ (x − log (1 + x)) / 2 for precisions in the ratio 1 + x."""
    p = make("dense", 1.0, rng)
    x = 1e-7
    q = posteriors.Gaussian(p.mean, p.precision_matrix * (1 + x))
    expected = torch.full((TASKS,), P * (x**2 / 2 - x**3 / 3) / 2, dtype=F64)
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-6, atol=0)


def test_a_thin_low_rank_posterior_keeps_its_digits() -> None:
    """F is 1e8 times as long as sqrt(δ): Woodbury's identity would have no digit left."""
    factor = torch.tensor([[[1e8], [0.0]]], dtype=F64)
    q = posteriors.LowRankGaussian(
        torch.zeros(1, 2, dtype=F64), factor, torch.ones(1, 2, dtype=F64)
    )
    p = posteriors.DiagonalGaussian(
        torch.tensor([[1e8, 0.0]], dtype=F64), torch.tensor([[1e-16, 1.0]], dtype=F64)
    )
    close(kl_divergence(p, q), torch.tensor([0.5], dtype=F64), 1e-12)
    close(kl_divergence(q, p), torch.tensor([0.5], dtype=F64), 1e-12)


def test_divergence_is_the_expected_log_ratio(rng) -> None:
    p, q = make("low rank", 1.0, rng), make("Kronecker", 1.0, rng)
    w = p.sample((200_000,), generator=rng)
    ratio = p.log_prob(w) - q.log_prob(w)
    error = ratio.std(0) / len(w) ** 0.5
    assert ((kl_divergence(p, q) - ratio.mean(0)).abs() < 5 * error).all()


def test_entropy_with_an_uncertain_scale_is_the_expected_log_density(rng) -> None:
    p = posteriors.NormalInverseGamma(
        torch.randn(TASKS, P, generator=rng, dtype=F64),
        spd(rng, TASKS, P),
        torch.tensor([2.5, 4.0, 30.0], dtype=F64),
        torch.tensor([1e-6, 1.0, 1e6], dtype=F64),
    )
    minus = -p.log_prob(p.sample((200_000,), generator=rng))
    error = minus.std(0) / len(minus) ** 0.5
    assert ((p.entropy() - minus.mean(0)).abs() < 5 * error).all()


def test_divergence_has_a_gradient(rng) -> None:
    p, q = make("dense", 1.0, rng), make("diagonal", 1.0, rng)
    mean = p.mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(kl_divergence(p.with_mean(mean), q).sum(), mean)
    close(slope, q.precision_times(p.mean - q.mean))


def test_other_heads_are_refused(rng) -> None:
    p = make("dense", 1.0, rng)
    with pytest.raises(errors.ShapeError, match=r"\[3, 6\] and \[2, 6\]"):
        kl_divergence(p, p.part(slice(0, 2)))
