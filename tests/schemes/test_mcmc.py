"""Markov chains: the analytic posterior, honest diagnostics, the same draws for the same seed."""

from __future__ import annotations

import pytest
import torch
from problems import F64, Linear, by_grid, normal, seed

from bayesagg_pyro import errors, heads, inference, posteriors, priors
from bayesagg_pyro.inference import _mcmc
from bayesagg_pyro.posteriors._chains import effective_size


@pytest.mark.slow
def test_nuts_recovers_the_analytic_posterior(rng) -> None:
    p = Linear(rng, d=2, tasks=1)
    found = inference.NUTS(260, warmup=40, chains=2, generator=seed()).infer(*p.arguments)
    mean, covariance = p.far(found)
    assert found.info.ess.min() >= 500
    assert found.info.converged is None, "that of the approximation it starts from says nothing"
    assert mean < 0.1
    assert covariance < 0.1
    assert found.info.r_hat.max() < 1.01
    assert found.info.divergences.sum() == 0
    assert found.by_chain.shape == (2, 260, 1, 3)
    assert torch.equal(found.by_chain[1, 0], found.samples[260])


@pytest.mark.slow
def test_hmc_recovers_the_analytic_posterior_of_several_tasks_at_once(rng) -> None:
    p = Linear(rng, d=2, tasks=2)
    found = inference.HMC(400, warmup=40, chains=2, generator=seed()).infer(*p.arguments)
    mean, covariance = p.far(found)
    assert found.info.ess.shape == (2, 3)
    assert found.info.ess.min() >= 667
    assert mean < 0.1
    assert covariance < 0.1
    assert found.info.r_hat.max() < 1.01


def test_a_posterior_that_is_no_gaussian(rng) -> None:
    """One binary weight on separable data, against a grid: skewed, where Laplace is off."""
    head = heads.Bernoulli(1, bias=False).double()
    h, y = torch.ones(2, 1, dtype=F64), torch.ones(2, 1, dtype=F64)
    prior = priors.isotropic(head, 9.0)
    scheme = inference.HMC(250, warmup=40, chains=2, generator=seed())
    found = scheme.infer(head, h, y, prior)

    def log_density(w: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.logsigmoid(w) - w**2 / 18

    mean, variance = by_grid(log_density)
    error = variance.sqrt() / found.info.ess.min().sqrt()
    assert abs(found.mean[0, 0] - mean) < 4 * error
    assert abs(found.variance[0, 0] / variance - 1) < 0.3
    laplace = inference.Laplace().infer(head, h, y, prior)
    assert abs(laplace.mean[0, 0] - mean) > 5 * error


@pytest.mark.parametrize("kind", [inference.NUTS, inference.HMC])
def test_the_same_generator_gives_the_same_chains(rng, kind) -> None:
    p = Linear(rng, d=1, tasks=1)
    scheme = kind(6, warmup=4, chains=2)
    before = torch.get_rng_state()
    one, two, other = (scheme.infer(*p.arguments, generator=seed(n)).samples for n in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert not torch.equal(one[:6], one[6:])
    assert torch.equal(torch.get_rng_state(), before)
    own = kind(6, warmup=4, chains=2, generator=seed(1))
    assert torch.equal(own.infer(*p.arguments, generator=seed(2)).samples, one)


def test_whitening_makes_the_units_of_features_irrelevant(rng) -> None:
    """Features times 1000 and 0.001, prior variances to match: the same chain in those units."""
    head = heads.Bernoulli(2, bias=False).double()
    h, y = normal(rng, 20, 2), (torch.rand(20, 1, generator=rng) < 0.6).double()
    units = torch.tensor([1e3, 1e-3], dtype=F64)
    scheme = inference.HMC(10, warmup=15, chains=1)
    one = scheme.infer(head, h, y, priors.isotropic(head, 1.0), generator=seed())
    prior = posteriors.DiagonalGaussian(torch.zeros(1, 2, dtype=F64), units[None] ** 2)
    other = scheme.infer(head, h * units, y, prior, generator=seed())
    torch.testing.assert_close(other.samples * units, one.samples, rtol=1e-5, atol=1e-5)
    assert one.info.divergences.sum() == 0


def test_chains_that_alternate_have_a_bounded_effective_size() -> None:
    flip = torch.tensor([1.0, -1.0], dtype=F64).repeat(50)
    draws = (flip + 0.1 * torch.randn(100, dtype=F64, generator=seed())).reshape(1, 100, 1, 1)
    arviz = pytest.importorskip("arviz")
    expected = float(arviz.ess(draws[..., 0, 0].numpy()))
    assert float(effective_size(draws)) == pytest.approx(expected, rel=1e-9)
    assert expected <= 200
    assert float(effective_size(flip.reshape(1, 100, 1, 1))) == pytest.approx(200)  # S log10 S
    walk = torch.randn(100, dtype=F64, generator=seed()).cumsum(0).reshape(1, 100, 1, 1)
    assert float(effective_size(walk)) < 20


def test_an_empirical_prior_stands_for_the_gaussian_of_its_moments(rng) -> None:
    p = Linear(rng)
    draws = posteriors.Empirical(p.exact.sample((4000,), generator=seed()))
    dense = draws.to_gaussian()
    torch.testing.assert_close(dense.mean, draws.mean)
    covariance = torch.cov(draws.samples[:, 0].T)
    torch.testing.assert_close(dense.covariance_matrix[0], covariance, rtol=0.02, atol=1e-3)
    few = posteriors.Empirical(draws.samples[:3]).to_gaussian()  # fewer than weights
    assert few.covariance_matrix.isfinite().all()
    torch.testing.assert_close(few.variance, draws.samples[:3].var(0))
    scheme = inference.Ensemble(3, generator=seed())
    one = scheme.infer(p.head, p.features, p.targets, draws, generator=seed())
    other = inference.Ensemble(3, generator=seed()).infer(p.head, p.features, p.targets, dense)
    assert torch.equal(one.samples, other.samples)


def test_a_trajectory_ends_however_small_its_steps(rng, monkeypatch) -> None:
    monkeypatch.setattr(_mcmc, "_MOST_STEPS", 32)
    p = Linear(rng, d=1, tasks=1)
    endless = inference.HMC(4, warmup=1, chains=1, trajectory=1e9, generator=seed())
    assert endless.infer(*p.arguments).samples.isfinite().all()


def test_bad_settings_and_priors(rng) -> None:
    for kind in (inference.NUTS, inference.HMC):
        for wrong in ({"draws": 3}, {"warmup": 0}, {"chains": 0}, {"target_acceptance": 1.0}):
            with pytest.raises(errors.SettingError):
                kind(**wrong)
        with pytest.raises(errors.SettingError):
            kind(whiten="no")
    with pytest.raises(errors.SettingError):
        inference.HMC(trajectory=0.0)
    with pytest.raises(errors.SettingError):
        inference.NUTS(max_tree_depth=0)
    p = Linear(rng)
    point = posteriors.Point(p.exact.mean)
    with pytest.raises(errors.DtypeError, match="no density"):
        inference.NUTS(8).infer(p.head, p.features, p.targets, point)
    with pytest.raises(errors.ShapeError):
        inference.NUTS(8).infer(
            p.head, p.features, p.targets, priors.isotropic(heads.Gaussian(9), 1.0)
        )
    with pytest.raises(errors.ShapeError):
        posteriors.Empirical(torch.zeros(5, 1, 2), chains=2)
    with pytest.raises(errors.NumericalError, match="the same in all"):
        posteriors.Empirical(torch.ones(5, 1, 2)).to_gaussian()
