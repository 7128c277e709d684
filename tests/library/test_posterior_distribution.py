"""The posterior as a distribution: density, samples, moves, storage."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from oracles import case, close, spd
from scipy import stats
from torch.distributions import MultivariateNormal

from bayesagg_pyro import errors, inference, posteriors


def gaussian(rng, tasks: int = 3, size: int = 4, rows: int | None = None) -> posteriors.Gaussian:
    mean = torch.randn(tasks, size, generator=rng, dtype=torch.float64)
    return posteriors.Gaussian(mean, spd(rng, rows or tasks, size))


@pytest.mark.parametrize("rows", [1, 3])
def test_density_and_factors_equal_torchs(rng, rows) -> None:
    p = gaussian(rng, rows=rows)
    reference = MultivariateNormal(p.mean, precision_matrix=p.precision_matrix.expand(3, 4, 4))
    values = torch.randn(7, 3, 4, generator=rng, dtype=torch.float64)
    close(p.log_prob(values), reference.log_prob(values))
    close(p.log_prob(values[0]), reference.log_prob(values[0]))
    close(p.variance, reference.variance)
    close(p.covariance_matrix.expand(3, 4, 4), reference.covariance_matrix)
    close((p.scale_tril @ p.scale_tril.mT).expand(3, 4, 4), reference.covariance_matrix)
    assert torch.equal(p.scale_tril, p.scale_tril.tril())
    assert p.batch_shape == (3,)
    assert p.event_shape == (4,)


def test_a_covariance_does_not_depend_on_what_was_asked_before(rng) -> None:
    asked = gaussian(rng, size=9)
    anew = posteriors.Gaussian(asked.mean, asked.precision_matrix)
    assert (asked.variance > 0).all()
    assert torch.equal(anew.covariance_matrix, asked.covariance_matrix)


@pytest.mark.parametrize("rows", [1, 3])
def test_expanding_keeps_the_distribution(rng, rows) -> None:
    p = gaussian(rng, rows=rows)
    values = torch.randn(5, 3, 4, generator=rng, dtype=torch.float64)
    wide = p.expand(torch.Size([5, 3]))
    assert wide.batch_shape == (5, 3)
    close(wide.log_prob(values), p.log_prob(values))


def test_shared_precision_still_draws_tasks_independently(rng) -> None:
    p = gaussian(rng, rows=1)
    w = p.sample((40_000,), generator=rng) - p.mean
    cross = torch.einsum("sp,sq->pq", w[:, 0], w[:, 1]) / len(w)
    scale = p.variance[0].sqrt()
    assert (cross.abs() < 5 * torch.outer(scale, scale) / len(w) ** 0.5).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_samples_have_the_right_moments(rng, rows) -> None:
    p = gaussian(rng, rows=rows)
    n = 40_000
    w = p.sample((n,), generator=rng)
    assert w.shape == (n, 3, 4)
    assert ((w.mean(0) - p.mean).abs() < 5 * (p.variance / n).sqrt()).all()
    covariance = torch.einsum("stp,stq->tpq", w - p.mean, w - p.mean) / n
    expected = p.covariance_matrix.expand(3, 4, 4)
    v = p.variance
    error = ((v[:, :, None] * v[:, None] + expected.square()) / n).sqrt()
    assert ((covariance - expected).abs() < 5 * error).all()
    # and the right shape: squared Mahalanobis distances are chi-squared with 4 degrees of freedom
    centred = w - p.mean
    distance = torch.einsum("stp,tpq,stq->st", centred, p.precision_matrix.expand(3, 4, 4), centred)
    assert stats.kstest(distance[:, 0].numpy(), stats.chi2(4).cdf).pvalue > 1e-3


def test_sampling_with_a_generator_is_repeatable_and_private(rng) -> None:
    p = gaussian(rng)
    state = torch.get_rng_state()
    first = p.sample((2, 5), generator=torch.Generator().manual_seed(5))
    again = p.sample((2, 5), generator=torch.Generator().manual_seed(5))
    assert first.shape == (2, 5, 3, 4)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert p.sample(generator=rng).shape == (3, 4)
    assert p.sample().shape == (3, 4)
    assert not torch.equal(torch.get_rng_state(), state)  # without one: torch's own


@pytest.mark.parametrize("kind", ["Gaussian", "Empirical"])
def test_storage_and_copies_are_exact(rng, kind) -> None:
    p: posteriors.Posterior = gaussian(rng)
    if kind == "Empirical":
        p = posteriors.Empirical(p.sample((6,), generator=rng))
    buffer = io.BytesIO()
    torch.save(p.state_dict(), buffer)
    buffer.seek(0)
    back = posteriors.Posterior.from_state_dict(torch.load(buffer, weights_only=True))
    for other in (back, copy.deepcopy(p)):
        assert type(other) is type(p)
        for name, tensor in p.tensors().items():
            assert torch.equal(other.tensors()[name], tensor)
    assert p.to(dtype=torch.float32).mean.dtype == torch.float32


def test_an_unknown_class_cannot_be_loaded() -> None:
    with pytest.raises(errors.StateError, match="Elsewhere"):
        posteriors.Posterior.from_state_dict({"Elsewhere.mean": torch.ones(1, 2)})


def test_empirical_moments_and_draws(rng) -> None:
    draws = torch.randn(50, 2, 3, generator=rng, dtype=torch.float64)
    p = posteriors.Empirical(draws)
    close(p.mean, draws.mean(0))
    close(p.variance, draws.var(0, unbiased=True))
    for task in range(2):
        close(p.covariance_matrix[task], draws[:, task].mT.cov())
    assert p.tasks == 2
    for weights in p.sample((20,), generator=rng):
        assert (draws == weights).all((1, 2)).any()  # a stored draw, its tasks together


def test_condition_number_and_its_bound(rng) -> None:
    p = gaussian(rng)
    exact = torch.linalg.cond(p.precision_matrix)
    close(p.condition_number(), exact, 1e-9)
    assert (p.info.condition <= exact * (1 + 1e-12)).all()
    assert (p.info.jitter == 0).all()


def test_jitter_is_reported_and_hopeless_matrices_raise(rng) -> None:
    v = torch.randn(4, generator=rng, dtype=torch.float64)
    singular = torch.outer(v, v)[None]
    p = posteriors.Gaussian(torch.zeros(1, 4).double(), singular)
    assert p.info.jitter.item() > 0
    with pytest.raises(errors.NumericalError, match="not positive definite"):
        posteriors.Gaussian(torch.zeros(1, 4).double(), -torch.eye(4).double()[None])


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (3, 5, 5)])
def test_mean_and_precision_must_fit(shape) -> None:
    with pytest.raises(errors.ShapeError, match="precision"):
        posteriors.Gaussian(torch.zeros(3, 4), torch.eye(shape[-1]).expand(shape))


@pytest.mark.parametrize("shape", [(1, 2, 3), (5, 3), (0, 2, 3)])
def test_empirical_needs_samples(shape) -> None:
    with pytest.raises(errors.ShapeError, match="samples"):
        posteriors.Empirical(torch.zeros(shape))


@pytest.mark.parametrize("noise", [0.5, [0.5, 1.0, 2.0]], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_predictive_is_exact(rng, bias, noise) -> None:
    c = case(rng, bias=bias, noise=noise)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    predictive = c.head.predictive(c.features, p)
    assert predictive.batch_shape == (12, 3)
    for b in range(12):
        for t in range(3):
            h = c.design[b]
            close(predictive.mean[b, t], h @ p.mean[t])
            variance = h @ p.covariance_matrix[t] @ h + c.noise[t] ** 2
            close(predictive.variance[b, t], variance)
