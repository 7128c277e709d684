"""The normal-inverse-gamma posterior against textbook formulas and integrals over the noise."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from setups import Data, Run, close, gaussian, same
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

SCHEME = inference.IntegratedNoise(shape=3.5)


def data(rng: torch.Generator, n: int = 30) -> Data:
    return gaussian(rng, n, noise=(0.7, 1.0, 1.5))


def posterior(d: Data, rows: slice = slice(0, 30)) -> posteriors.NormalInverseGamma:
    return SCHEME.infer(d.head, *d.rows(rows), priors.isotropic(d.head, 0.8))


def grid(found: posteriors.NormalInverseGamma) -> tuple[Tensor, Tensor]:
    """Points log τ² [G, tasks] and weights [G, tasks] of a trapezoid rule over the noise."""
    log = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None].expand(-1, 3)
    density = (found.noise.log_prob(log.exp()) + log).exp() * (24 / 4000)
    return log.exp(), density


def agrees(left, right, tolerance: float = 1e-10) -> None:
    close(left.mean, right.mean, tolerance)
    close(
        left.unit.precision_matrix.expand(3, -1, -1),
        right.unit.precision_matrix.expand(3, -1, -1),
        tolerance,
    )
    close(left.shape_parameter, right.shape_parameter, tolerance)
    close(left.rate, right.rate, tolerance)


def test_the_update_of_the_textbook(rng) -> None:
    """Bishop (2006), exercise 3.12: written with moments of precision, examples weighted."""
    d = data(rng)
    found = posterior(d)
    features, targets = d.parsed(slice(0, 30))
    design = d.head.design_matrix(features)
    for t in range(3):
        factor = targets.factor(torch.float64)[:, t]
        y = targets.values[:, t]
        precision = torch.eye(5).double() / 0.8 + (design * factor[:, None]).T @ design
        mean = torch.linalg.solve(precision, design.T @ (factor * y))
        a = 3.5 + factor.sum() / 2
        b = 2.5 * d.head.noise_scale[t] ** 2 + 0.5 * (
            (factor * y * y).sum() - mean @ precision @ mean
        )
        close(found.mean[t], mean)
        close(found.unit.precision_matrix[t], precision)
        close(found.shape_parameter[t], a)
        close(found.rate[t], b, 1e-9)


def test_the_prior_noise_has_the_heads_mean(rng) -> None:
    d = data(rng)
    known = SCHEME.known(d.head, priors.isotropic(d.head, 0.8))[1]
    close(known.noise_mean, d.head.noise_scale**2)


def test_the_predictive_is_student_t(rng) -> None:
    """Against ∫ N(y; hᵀm, τ² (1 + hᵀVh)) p(τ²) dτ²."""
    d = data(rng)
    found = posterior(d)
    features = d.features[:4]
    predictive = d.head.predictive(features, found)
    assert isinstance(predictive, dist.StudentT)
    y = torch.linspace(-3, 3, 4, dtype=torch.float64)[:, None].expand(4, 3)
    design = d.head.design_matrix(features)
    spread = found.unit.project(design).variance.mT
    noise, weight = grid(found)
    scale = (noise[:, None] * (1 + spread)).sqrt()
    density = dist.Normal(design @ found.mean.mT, scale).log_prob(y).exp()
    close(predictive.log_prob(y), (density * weight[:, None]).sum(0).log(), 1e-9)


def test_draws_predict_with_a_noise_each(rng) -> None:
    """A mixture over weights and τ: the same Student's t, to the error of 4,000 draws."""
    d = data(rng)
    found = posterior(d)
    features = d.features[:4]
    exact = d.head.predictive(features, found)
    law = d.head.predictive(features, found, method="samples", samples=4000)
    scale = exact.variance.sqrt()
    assert ((law.mean - exact.mean).abs() < 5 * law.standard_error).all()
    close(law.variance.sqrt() / scale, torch.ones_like(scale), 0.1)
    at = exact.mean + scale * torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(law.log_prob(at), exact.log_prob(at), rtol=0, atol=0.1)
    torch.testing.assert_close(law.cdf(at), exact.cdf(at), rtol=0, atol=0.03)
    assert law.sample((5,)).shape == (5, 4, 3)
    met = d.head.predictive(features, found, method="samples", samples=2, tolerance=0.1)
    assert (met.standard_error / met.variance.sqrt()).max() <= 0.1
    assert len(met.components) > 2


def test_the_weights_are_student_t(rng) -> None:
    found = posterior(data(rng))
    at = found.mean + 0.1 * torch.randn(2, 3, 5, generator=rng, dtype=torch.float64)
    a, b = found.shape_parameter, found.rate
    scale = torch.linalg.cholesky((b / a)[:, None, None] * found.unit.covariance_matrix)
    reference = dist.MultivariateStudentT(2 * a, found.mean, scale)
    close(found.log_prob(at), reference.log_prob(at))
    close(found.variance, reference.variance)
    draws = found.sample((100_000,), generator=rng)
    close(draws.mean(0), found.mean, 5e-3)
    ratio = draws.var(0) / found.variance
    close(ratio, torch.ones_like(ratio), 0.05)


@pytest.mark.parametrize("bias", [False, True])
def test_gradient_moments_are_exact(bias, rng) -> None:
    """Against integrals over τ² of the moments given τ², by the law of total covariance."""
    head = heads.Gaussian(4, 3, bias=bias)
    h = torch.randn(9, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(9, 3, generator=rng, dtype=torch.float64)
    found = inference.IntegratedNoise().infer(head, h, y, priors.isotropic(head, 1.0))
    grad = gradients.distribution(head, found, h, y)
    log = torch.linspace(-8, 8, 161, dtype=torch.float64)
    weight = (found.noise.log_prob(log.exp()[:, None]) + log[:, None]).exp() * (16 / 160)
    mean, second = torch.zeros(3, 9, 4).double(), torch.zeros(3, 9, 4, 4).double()
    for noise, share in zip(log.exp(), weight, strict=True):
        given = posteriors.Gaussian(found.mean, found.unit.precision_matrix / noise)
        part = gradients.gaussian_moments(head, given, h, head.parse_targets(y, len(h)))
        share = share[:, None, None]
        mean += share * part.mean
        outer = part.mean[..., :, None] * part.mean[..., None, :]
        second += share[..., None] * (part.covariance_matrix + outer)
    covariance = second - mean[..., :, None] * mean[..., None, :]
    close(grad.mean, mean, 1e-7)
    close(grad.covariance_matrix, covariance, 1e-6)
    close(grad.variance, covariance.diagonal(dim1=-2, dim2=-1), 1e-6)
    draws = grad.sample((40_000,), generator=rng)
    error = (draws.mean(0) - grad.mean) / grad.variance.sqrt()
    assert error.abs().max() < 0.03


def test_batches_in_turn_equal_all_at_once_and_sums(rng) -> None:
    d = data(rng)
    whole = posterior(d)
    step = priors.isotropic(d.head, 0.8)
    sums = SCHEME.statistics(d.head, inference.Storage())
    for part in (slice(0, 4), slice(4, 17), slice(17, 30)):
        step = SCHEME.infer(d.head, *d.rows(part), step)
        sums.add(*d.parsed(part))
    agrees(step, whole)
    agrees(sums.posterior(priors.isotropic(d.head, 0.8)), whole, 1e-9)


def test_leaving_a_batch_out_and_back_in(rng) -> None:
    d = data(rng)
    tracker = priors.FullData(0.8, leave_batch_out=True).start(d.head, SCHEME)
    tracker.collect(*d.parsed(slice(0, 30)))
    tracker.update()
    features, targets = d.parsed(slice(5, 20))
    cavity = tracker.prior_for(features, targets)
    assert cavity.info.left_out.all()
    agrees(SCHEME.infer(d.head, features, targets, cavity), tracker.prior, 1e-9)
    stays = tracker.prior_for(40 * features, targets)
    assert not stays.info.left_out.any()
    agrees(stays, tracker.prior)


def test_without_noise_to_learn_it_tends_to_the_known_noise(rng) -> None:
    """A prior worth a million examples of noise at τ is a head with that τ."""
    d = data(rng)
    sure = inference.IntegratedNoise(shape=1e9)
    variance = 0.8 * d.head.noise_scale**2  # the scheme reads priors in units of the noise
    found = sure.infer(d.head, *d.rows(slice(0, 30)), priors.isotropic(d.head, 0.8))
    known = inference.Conjugate().infer(
        d.head, *d.rows(slice(0, 30)), priors.isotropic(d.head, variance)
    )
    same(found, known, 1e-6)


def test_the_noise_is_found(rng) -> None:
    head = heads.Gaussian(3, 2)
    h = torch.randn(20_000, 3, generator=rng, dtype=torch.float64)
    scale = torch.tensor([0.2, 3.0]).double()
    y = h @ torch.randn(3, 2, generator=rng, dtype=torch.float64)
    y = y + scale * torch.randn(20_000, 2, generator=rng, dtype=torch.float64)
    found = inference.IntegratedNoise().infer(head, h, y, priors.isotropic(head, 10.0))
    error = (found.noise_mean - scale**2) / found.noise_variance.sqrt()
    assert error.abs().max() < 4
    close(found.noise_variance.sqrt() / found.noise_mean, torch.full((2,), 0.01).double(), 1e-3)


@pytest.mark.parametrize(
    "policy",
    [
        lambda: priors.FullData(leave_batch_out=True),
        lambda: priors.Running(20),
        lambda: priors.Fresh(),
        lambda: priors.Constant(),
    ],
    ids=["full", "running", "fresh", "constant"],
)
def test_it_trains_and_resumes(policy, rng) -> None:
    run = Run(rng, "conjugate", policy(), scheme=inference.IntegratedNoise())
    run.epoch()
    run.mtl.start_bayes()
    run.epoch()
    predictive = run.mtl.predictive(run.data.features)["a"]
    assert torch.isfinite(predictive.stddev).all()
    other = ba.BayesAgg(
        {"a": heads.Gaussian(4, 3, bias=True)},
        inference=inference.IntegratedNoise(),
        prior=policy(),
        generator=torch.Generator(),
    ).double()
    other.heads["a"].register_buffer("noise_scale", torch.ones(3).double())
    other.load_state_dict(run.mtl.state_dict())
    close(other.priors()["a"].mean, run.mtl.priors()["a"].mean, 0)
    close(other.priors()["a"].variance, run.mtl.priors()["a"].variance, 0)


def test_refusals(rng) -> None:
    d = data(rng)
    prior = priors.isotropic(d.head, 1.0)
    with pytest.raises(errors.SettingError, match="shape must be above 2"):
        inference.IntegratedNoise(2.0)
    binary, learns = heads.Bernoulli(4), heads.Gaussian(4, noise_scale="learned")
    x, y = torch.ones(2, 4), torch.ones(2, 1)
    with pytest.raises(errors.DtypeError, match="Gaussian heads only, not Bernoulli"):
        SCHEME.infer(binary, x, y, priors.isotropic(binary, 1.0))
    with pytest.raises(errors.SettingError, match="learns its noise"):
        SCHEME.infer(learns, x, y, priors.isotropic(learns, 1.0))
    draws = posteriors.Empirical(torch.ones(2, 3, 5).double())
    with pytest.raises(errors.DtypeError, match="needs a Gaussian prior or a posterior of its own"):
        SCHEME.infer(d.head, *d.rows(slice(0, 3)), draws)
    with pytest.raises(errors.NumericalError, match="shape > 2"):
        posteriors.NormalInverseGamma(
            prior.mean, prior.precision_matrix, torch.ones(3), torch.ones(3)
        )
    with pytest.raises(errors.ShapeError, match="shape and rate"):
        posteriors.NormalInverseGamma(
            prior.mean, prior.precision_matrix, torch.full((2,), 3.0), torch.ones(3)
        )


@pytest.mark.parametrize("scheme", [SCHEME, inference.Conjugate()], ids=repr)
def test_tempered_sums_are_those_of_weighted_examples(rng, scheme) -> None:
    d = data(rng)
    features, targets = d.parsed(slice(0, 30))
    weight = torch.ones(30, 3).double() if targets.weight is None else targets.weight
    sums = [scheme.statistics(d.head, inference.Storage()) for _ in range(2)]
    sums[0].add(features, targets)
    sums[1].add(features, targets._replace(weight=weight / 4))
    prior = priors.isotropic(d.head, 0.8)
    tempered, weighed = sums[0].scaled(0.25).posterior(prior), sums[1].posterior(prior)
    close(tempered.mean, weighed.mean)
    close(tempered.variance, weighed.variance)
    assert torch.equal(sums[0].total, 4 * sums[1].total)  # the sums themselves stay
