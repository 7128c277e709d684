"""Variational inference: right where the answer is known, and alone with its parameters."""

from __future__ import annotations

import pyro
import pytest
import torch
from problems import F64, Linear, distance, normal, seed
from pyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal

from bayesagg_pyro import errors, heads, inference, posteriors, priors
from bayesagg_pyro.inference._guides import DiagonalGuide, FullGuide, LowRankGuide
from bayesagg_pyro.inference._whitening import DenseWhitening, DiagonalWhitening


def test_full_recovers_the_analytic_posterior_from_a_wrong_start(rng) -> None:
    """Means off by 1.5 standard deviations, covariances by a factor of 4."""
    p = Linear(rng)
    off = p.exact.mean + 1.5 * p.exact.variance.sqrt()
    start = posteriors.Gaussian(off, p.exact.precision_matrix / 4)
    scheme = inference.Variational(steps=150, particles=4, generator=seed())
    found = scheme.infer(*p.arguments, start=start)
    assert isinstance(found, posteriors.Gaussian)
    mean, covariance = p.far(found)
    assert mean < 0.02
    assert covariance < 0.05
    assert found.info.elbo.shape == (150,)
    assert found.info.elbo[-1] > found.info.elbo[0]
    assert found.info.converged.all()
    assert p.far(start)[0] > 1.4


def test_full_recovers_it_from_the_prior(rng) -> None:
    p = Linear(rng, n=6)
    scheme = inference.Variational(steps=250, learning_rate=0.1, whiten="prior", generator=seed())
    mean, covariance = p.far(scheme.infer(*p.arguments))
    assert mean < 0.1
    assert covariance < 0.1


def test_too_few_steps_are_not_called_converged(rng) -> None:
    p = Linear(rng)
    for steps in (4, 20, 60):
        scheme = inference.Variational(steps=steps, whiten="prior", generator=seed())
        assert not scheme.infer(*p.arguments).info.converged.any()


def test_diagonal_finds_the_mean_field_optimum(rng) -> None:
    """For a Gaussian: its mean, and the variances given all other weights."""
    p = Linear(rng)
    scheme = inference.Variational("diagonal", steps=200, generator=seed())
    found = scheme.infer(*p.arguments)
    assert isinstance(found, posteriors.DiagonalGaussian)
    expected = p.exact.precision_matrix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found.precision, expected, rtol=0.05, atol=0)
    assert ((found.mean - p.exact.mean) / p.exact.variance.sqrt()).abs().max() < 0.1


def test_low_rank_of_full_rank_is_full(rng) -> None:
    p = Linear(rng)
    scheme = inference.Variational("low_rank", rank=4, steps=250, generator=seed())
    found = scheme.infer(*p.arguments)
    assert isinstance(found, posteriors.LowRankGaussian)
    assert found.factor.shape == (2, 4, 4)
    mean, covariance = p.far(found)
    assert mean < 0.05
    assert covariance < 0.05


@pytest.mark.parametrize("guide", [AutoMultivariateNormal, AutoIAFNormal])
def test_guides_of_pyro(rng, guide) -> None:
    """Gaussian ones give a Gaussian, others draws."""
    p = Linear(rng, d=2, tasks=1)
    scheme = inference.Variational(guide, steps=150, particles=4, draws=200, generator=seed())
    found = scheme.infer(*p.arguments)
    gaussian = guide is AutoMultivariateNormal
    assert isinstance(found, posteriors.Gaussian if gaussian else posteriors.Empirical)
    mean, covariance = p.far(found)
    assert mean < (0.2 if gaussian else 0.4)
    assert covariance < (0.2 if gaussian else 0.5)


def test_heads_share_no_parameters_nor_the_global_store(rng) -> None:
    """Two heads with one guide class, then a third of another size: each as if it were alone."""
    alone, together = [], []
    pyro.get_param_store()["mine"] = torch.ones(2)
    for guide in ("full", AutoMultivariateNormal):
        cases = [(d, tasks, seed(d + tasks)) for d, tasks in ((2, 1), (2, 2), (3, 1))]
        problems = [Linear(data, d, tasks) for d, tasks, data in cases]
        scheme = inference.Variational(guide, steps=8, particles=2)
        together += [scheme.infer(*p.arguments, generator=seed()) for p in problems]
        alone += [
            inference.Variational(guide, steps=8, particles=2, generator=seed()).infer(*p.arguments)
            for p in reversed(problems)
        ][::-1]
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.precision_matrix, other.precision_matrix)
    store = pyro.get_param_store()
    assert list(store.keys()) == ["mine"]
    assert torch.equal(store["mine"], torch.ones(2))
    pyro.clear_param_store()


def test_the_global_generator_is_left_alone(rng) -> None:
    p = Linear(rng)
    before = torch.get_rng_state()
    dtype = torch.get_default_dtype()
    one = inference.Variational(steps=5).infer(*p.arguments, generator=seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == dtype
    two = inference.Variational(steps=5).infer(*p.arguments, generator=seed(2))
    assert not torch.equal(one.mean, two.mean)


def test_bernoulli_beats_laplace_in_its_own_bound(rng) -> None:
    """The bound at the optimum is above that at the start, Laplace's approximation."""
    head = heads.Bernoulli(2, tasks=2).double()
    h, y = 2 * normal(rng, 6, 2), (torch.rand(6, 2, generator=rng) < 0.7).double()
    scheme = inference.Variational(steps=200, particles=16, generator=seed())
    found = scheme.infer(head, h, y, priors.isotropic(head, 9.0))
    elbo = found.info.elbo
    assert elbo[-40:].mean() > elbo[:20].mean()
    laplace = inference.Laplace().infer(head, h, y, priors.isotropic(head, 9.0))
    assert distance(found, laplace)[1] > 0.05  # a wide prior and few data: not the same answer


def test_an_optimiser_of_the_users_own(rng) -> None:
    p = Linear(rng)
    made = []

    def factory(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.05))
        return made[0]

    found = inference.Variational(steps=50, optimizer=factory, generator=seed()).infer(*p.arguments)
    assert len(made) == 1
    assert p.far(found)[0] < 0.1


def test_bad_settings_and_guides() -> None:
    for wrong in (
        {"guide": "dense"},
        {"steps": 0},
        {"particles": 0},
        {"rank": 0},
        {"learning_rate": 0.0},
        {"whiten": "no"},
        {"refresh": 0},
        {"refresh": "never"},
        {"refresh": True},
    ):
        with pytest.raises(errors.SettingError):
            inference.Variational(**wrong)


def test_a_guide_with_global_parameters_is_refused(rng) -> None:
    p = Linear(rng)

    def bare(model):
        def guide() -> None:
            loc = pyro.param("loc", torch.zeros(2, 4))
            with pyro.plate("head.tasks", 2, dim=-1):
                pyro.sample("head.white", pyro.distributions.Delta(loc, event_dim=1))

        return guide

    with pytest.raises(errors.SettingError, match="PyroModule"):
        inference.Variational(bare).infer(*p.arguments)
    with pytest.raises(errors.NumericalError, match="learning rate"):
        inference.Variational(steps=30, learning_rate=1e6).infer(*p.arguments)


def test_many_weights_do_not_drown_in_the_optimisers_noise(rng) -> None:
    """Against the exact posterior of 80 weights: no direction collapses."""
    d = 80
    features = torch.randn(200, d, generator=rng)
    head = heads.Gaussian(d, 1, bias=False)
    targets = features[:, :1] + torch.randn(200, 1, generator=rng)
    prior = priors.isotropic(head, 1.0)
    exact = inference.Conjugate().infer(head, features, targets, prior)
    start = posteriors.Gaussian(exact.mean + 0.3 * exact.variance.sqrt(), exact.precision_matrix)
    scheme = inference.Variational(generator=seed(1))
    found = scheme.infer(head, features, targets, prior, start=start)
    # Variances along the exact posterior's own axes, in its units: all 1 where the two agree.
    tril = exact.precision_tril[0].double()
    spread = torch.linalg.eigvalsh(tril.mT @ found.covariance_matrix[0].double() @ tril)
    assert spread[0] > 0.95
    assert spread[-1] < 1.05


def test_too_few_steps_to_tell_are_not_settled(rng) -> None:
    p = Linear(rng)
    found = inference.Variational(steps=5).infer(p.head, p.features, p.targets, p.prior)
    assert found.info.converged.dtype == torch.bool
    assert not found.info.converged.any()


@pytest.mark.parametrize("kind", [FullGuide, DiagonalGuide, LowRankGuide])
def test_draws_of_a_guide_are_of_its_density(rng, kind) -> None:
    centre = posteriors.DiagonalGaussian(torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64))
    whitening = DenseWhitening(centre) if kind is FullGuide else DiagonalWhitening(centre)
    more = [2] if kind is LowRankGuide else []
    guide = kind("w", "tasks", whitening, *more)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.copy_(0.5 * normal(rng, *parameter.shape))
    torch.manual_seed(0)
    draws = guide.draw(torch.Size([40_000])).detach()[:, 0]
    density = lambda z: guide.log_density(z[None])[0]  # noqa: E731
    precision = -torch.autograd.functional.hessian(density, guide.loc.detach()[0])
    torch.testing.assert_close(draws.mean(0), guide.loc.detach()[0], rtol=0, atol=0.03)
    torch.testing.assert_close(
        draws.T.cov() @ precision, torch.eye(3, dtype=F64), rtol=0, atol=0.05
    )
