"""Predictive distributions, their densities and the two parts of their uncertainty."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihoods import F64, NAMES, ONE, gaussian, log_density, make, normal, targets_of
from scipy import stats
from scipy.special import logsumexp

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors
from bayesagg_pyro.predictive import (
    PredictiveDistribution,
    log_predictive_density,
    uncertainty,
)

Z = np.linspace(-45, 45, 40_001)  # for integrands with scales of 0.05 and more: exact to rounding
LOG_MASS = stats.norm.logpdf(Z) + math.log(Z[1] - Z[0])


def one_weight(mean: float, std: float) -> posteriors.Gaussian:
    """The posterior of a head of one feature, no bias, one task."""
    precision = torch.tensor([[[std**-2]]], dtype=F64)
    return posteriors.Gaussian(torch.tensor([[mean]], dtype=F64), precision)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.1), (-2.0, 2.0), (5.0, 10.0), (-100.0, 4.0)])
def test_log_predictive_density_is_the_integral(name, mean, std) -> None:
    """Against a trapezoid of 40,001 points over scipy's densities."""
    head = make(name, d=1, tasks=1)
    if head.bias:
        head = {
            "poisson": lambda: heads.Poisson(1, bias=False),
            "negative binomial": lambda: heads.NegativeBinomial(1, bias=False, dispersion=0.3),
            "student": lambda: heads.StudentT(1, df=3.0, scale=0.7),
        }[name]().double()
    for y in (0, 2, 3):
        target = torch.tensor([[y]], dtype=torch.long if name[0] == "o" else F64)
        found = log_predictive_density(
            head, one_weight(mean, std), torch.ones(1, 1).double(), target
        )
        with np.errstate(divide="ignore", over="ignore"):
            expected = logsumexp(log_density(name, mean + std * Z, y) + LOG_MASS)
        assert found.shape == (1, 1)
        if expected > -600:  # beyond, scipy's own probabilities underflow
            assert abs(found.item() - expected) < 1e-6


@pytest.mark.parametrize("mean", [-100.0, 0.0, 100.0])
@pytest.mark.parametrize("std", [1e-3, 1.0, 20.0])
def test_binary_and_two_class_densities_far_out(mean, std) -> None:
    """Log E sigmoid(u) to 1e-6 where the probability itself is 1e-44."""
    bernoulli = heads.Bernoulli(1, bias=False, pos_weight=3.0).double()
    two = heads.Categorical(1, 2, bias=False).double()
    p = one_weight(mean, std)
    pair = posteriors.Gaussian(
        torch.tensor([[0.0, mean]], dtype=F64),
        torch.diag(torch.tensor([1e14, std**-2]))[None].double(),
    ).replace(outputs_per_task=2)
    h = torch.ones(1, 1).double()
    for y in (0, 1):
        sign = 2 * y - 1
        expected = logsumexp(-np.logaddexp(0, -sign * (mean + std * Z)) + LOG_MASS)
        found = log_predictive_density(bernoulli, p, h, torch.tensor([[y]]))
        assert abs(found.item() - expected) < 2e-6
        found = log_predictive_density(two, pair, h, torch.tensor([[y]]))
        assert abs(found.item() - expected) < 2e-6


def test_methods_for_bernoulli(rng) -> None:
    """Probit within its 0.02, draws within their error, and quadrature by name."""
    head = heads.Bernoulli(3, 2).double()
    p, h = gaussian(rng, head, scale=1.5), normal(rng, 20, 3)
    exact = head.predictive(h, p).probs
    assert torch.equal(head.predictive(h, p, method="quadrature").probs, exact)
    assert (head.predictive(h, p, method="probit").probs - exact).abs().max() < 0.02
    drawn = head.predictive(h, p, method="samples", samples=4000).probs
    assert ((drawn - exact).abs() < 5 * (exact * (1 - exact) / 4000).sqrt()).all()
    assert torch.equal(drawn, head.predictive(h, p, method="samples", samples=4000).probs)
    for other, method in ((heads.Poisson(3), "probit"), (heads.Categorical(3, 3), "quadrature")):
        q = priors.isotropic(other, 1.0)
        with pytest.raises(errors.SettingError, match="auto"):
            other.predictive(h.float(), q, method=method)
    with pytest.raises(errors.SettingError, match="not 'exact'"):
        head.predictive(h, p, method="exact")
    with pytest.raises(errors.ShapeError, match="posterior"):
        head.predictive(h, gaussian(rng, heads.Bernoulli(4, 2)))


def test_count_moments_in_closed_form(rng) -> None:
    """E y = exp(μ + v/2); variances by the moments of a log-normal."""
    h = normal(rng, 5, 3)
    for head, alpha in ((make("poisson"), 0.0), (make("negative binomial"), None)):
        alpha = torch.tensor([0.3, 2.0]).double() if alpha is None else alpha
        p = gaussian(rng, head, scale=0.8)
        mean, v = head.predictor_moments(h, p)
        rate = (mean + v / 2).exp()
        found = head.predictive(h, p)
        torch.testing.assert_close(found.mean, rate, rtol=1e-7, atol=0)
        epistemic = rate.square() * v.expm1()
        aleatoric = rate + alpha * rate.square() * v.exp()
        torch.testing.assert_close(found.epistemic_variance, epistemic, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.aleatoric_variance, aleatoric, rtol=1e-6, atol=0)
        parts = uncertainty(head, p, h)
        torch.testing.assert_close(parts.total, found.variance)
        # and the probabilities of counts sum to 1
        q = p.with_mean(0 * p.mean)
        counts = torch.arange(2000).double()[:, None, None].expand(-1, 1, 2)
        total = head.predictive(0.1 * h[:1], q).log_prob(counts).exp().sum(0)
        torch.testing.assert_close(total, torch.ones(1, 2).double(), atol=1e-6, rtol=0)


def test_student_t_predictive(rng) -> None:
    """Density, distribution function, and variance where there is one."""
    head = heads.StudentT(1, df=3.0, scale=0.5).double()
    p, h = one_weight(0.4, 5.0), torch.ones(1, 1).double()
    found = head.predictive(h, p)
    for y in (-3.0, 0.4, 100.0, 1000.0):
        value = torch.tensor([[y]], dtype=F64)
        u = 0.4 + 5 * np.linspace(-40, 40, 400_001)
        log_mass = stats.norm.logpdf((u - 0.4) / 5) + math.log(80 / 400_000)
        expected = logsumexp(stats.t.logpdf(y, 3, loc=u, scale=0.5) + log_mass)
        assert abs(found.log_prob(value).item() - expected) < 1e-6
        below = np.exp(log_mass) @ stats.t.cdf(y, 3, loc=u, scale=0.5)
        assert abs(found.cdf(value).item() - below) < 1e-7
    torch.testing.assert_close(found.variance.item(), 25 + 0.25 * 3)
    assert heads.StudentT(1, df=1.5).double().predictive(h, p).variance.isinf()
    assert heads.StudentT(1, df=0.5).double().predictive(h, p).mean.isnan()


def test_heteroscedastic_predictive(rng) -> None:
    """Against a grid over both predictors, in the bulk and far in the tail."""
    head = heads.Heteroscedastic(1, bias=False).double()
    s = torch.tensor([[0.5, 0.3], [0.3, 0.8]], dtype=F64)
    m = torch.tensor([0.7, -0.5], dtype=F64)
    p = posteriors.Gaussian(m[None], torch.linalg.inv(s)[None]).replace(outputs_per_task=2)
    found = head.predictive(torch.ones(1, 1).double(), p)
    axis = torch.linspace(-12, 12, 1601, dtype=F64)
    z = torch.cartesian_prod(axis, axis)
    w = m + z @ torch.linalg.cholesky(s).T
    mass = (-0.5 * z.square().sum(1)).softmax(0)
    for y in (-0.2, 3.0, 30.0):
        each = torch.distributions.Normal(w[:, 0], (w[:, 1] / 2).exp()).log_prob(torch.tensor(y))
        expected = (each + mass.log()).logsumexp(0)
        value = torch.tensor([[y]], dtype=F64)
        assert abs(found.log_prob(value).item() - expected) < 1e-6
    torch.testing.assert_close(found.mean.item(), 0.7)
    torch.testing.assert_close(found.epistemic_variance.item(), 0.5)
    torch.testing.assert_close(found.aleatoric_variance.item(), math.exp(-0.5 + 0.4))
    below = (mass * torch.special.ndtr((1.0 - w[:, 0]) / (w[:, 1] / 2).exp())).sum()
    torch.testing.assert_close(found.cdf(torch.ones(1, 1).double()).squeeze(), below)


@pytest.mark.parametrize("name", [*NAMES, "gaussian", "bernoulli", "categorical"])
def test_an_empirical_posterior_is_the_average_over_its_draws(rng, name) -> None:
    """By the definition, and near those of the Gaussian that it is drawn from."""
    extra = {
        "gaussian": lambda: heads.Gaussian(3, 2, noise_scale=0.7),
        "bernoulli": lambda: heads.Bernoulli(3, 2),
        "categorical": lambda: heads.Categorical(3, 4, tasks=2),
    }
    head = extra[name]().double() if name in extra else make(name)
    p, h = gaussian(rng, head, scale=0.4), normal(rng, 4, 3)
    y = {
        "gaussian": lambda: normal(rng, 4, 2),
        "bernoulli": lambda: torch.randint(0, 2, (4, 2), generator=rng),
        "categorical": lambda: torch.randint(0, 4, (4, 2), generator=rng),
    }.get(name, lambda: targets_of(rng, name, 4))()
    draws = posteriors.Empirical(p.sample((3000,), generator=rng)).replace(
        outputs_per_task=head.outputs_per_task
    )
    found = head.predictive(h, draws)
    assert found.batch_shape == (4, 2)
    value = y.double() if head.target_kind in ("binary", "count") else y
    each = head.likelihood(head(h, draws.samples)).log_prob(value)
    density = log_predictive_density(head, draws, h, y)
    torch.testing.assert_close(density, each.logsumexp(0) - math.log(3000))
    smooth = log_predictive_density(head, p, h, y)
    ratio = (each - smooth).exp()
    assert ((ratio.mean(0) - 1).abs() < 6 * ratio.std(0) / 3000**0.5 + 1e-3).all()
    parts, smooth = uncertainty(head, draws, h), uncertainty(head, p, h)
    assert (parts.epistemic > 0).all()
    torch.testing.assert_close(parts.epistemic, smooth.epistemic, rtol=0.35, atol=0.01)
    torch.testing.assert_close(parts.aleatoric, smooth.aleatoric, rtol=0.35, atol=0.01)
    if parts.measure == "entropy":
        torch.testing.assert_close(parts.total, found.entropy())
    else:
        assert isinstance(found, PredictiveDistribution)
        torch.testing.assert_close(parts.total, found.variance)


@pytest.mark.parametrize("name", NAMES)
def test_samples_follow_the_distribution(rng, name) -> None:
    """Means of many, one shape, the generator's alone, and nothing global moves."""
    head = make(name)
    p, h = gaussian(rng, head, scale=0.3), normal(rng, 3, 3)
    if name == "student":
        head = heads.StudentT(3, 2, df=8.0, bias=True).double()
    for posterior in (p, posteriors.Empirical(p.sample((50,), generator=rng))):
        posterior = posterior.replace(outputs_per_task=head.outputs_per_task)
        found = head.predictive(h, posterior)
        state = torch.get_rng_state()
        drawn = found.sample((4000,), generator=torch.Generator().manual_seed(1))
        again = found.sample((4000,), generator=torch.Generator().manual_seed(1))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(drawn, again)
        assert drawn.shape == (4000, 3, 2)
        if not isinstance(found, PredictiveDistribution):
            continue  # a distribution of torch
        error = (found.variance / 4000).sqrt()
        assert ((drawn.mean(0) - found.mean).abs() < 6 * error).all()
        assert found.log_prob(drawn[:5]).shape == (5, 3, 2)
        torch.testing.assert_close(found.log_prob(drawn[:5])[3], found.log_prob(drawn[3]))


def test_uncertainty_of_classes(rng) -> None:
    """Mutual information: 0 for known weights, log 2 where every draw is sure and none agrees."""
    head = heads.Bernoulli(1, bias=False).double()
    h = torch.ones(1, 1).double()
    sure = uncertainty(head, one_weight(0.0, 1e4), h)
    assert abs(sure.epistemic.item() - math.log(2)) < 1e-3
    known = uncertainty(head, one_weight(0.7, 1e-8), h)
    assert known.epistemic.item() < 1e-12
    q = 1 / (1 + math.exp(-0.7))
    assert abs(known.aleatoric.item() + q * math.log(q) + (1 - q) * math.log(1 - q)) < 1e-9
    for mean in (-100.0, 100.0):
        assert uncertainty(head, one_weight(mean, 1.0), h).total.isfinite().all()
    for structure in ("full", "kron", "diag"):
        three = heads.Categorical(2, 3).double()
        y = torch.randint(
            0, 2, (3, 1), generator=rng
        )  # fewer examples than weights, an empty class
        x = normal(rng, 3, 2)
        p = inference.TaylorGGN(structure).infer(three, x, y, priors.isotropic(three, 1.0))
        found = uncertainty(three, p, x)
        torch.testing.assert_close(found.total, three.predictive(x, p).entropy())


@pytest.mark.parametrize("std", [1.0, 30.0, 100.0, 1000.0])
def test_uncertainty_of_ordered_classes_far_from_zero(std: float) -> None:
    """Nodes that reached for what grows without end were too few around each cut-point."""
    head = heads.Ordinal(1, 4, cutpoints=[5.0, 10.0, 20.0]).double()
    p, h = one_weight(2.0, std), torch.ones(1, 1).double()
    u = torch.linspace(-60, 90, 100_001, dtype=F64)
    density = (-0.5 * ((u - 2) / std).square()).exp() / (std * math.sqrt(2 * math.pi))
    inner = head.likelihood(u[:, None]).entropy()[:, 0]  # 0 beyond
    found = uncertainty(head, p, h)
    assert abs(found.aleatoric.item() - torch.trapezoid(inner * density, u).item()) < 1e-5
    assert abs(found.total.item() - head.predictive(h, p).entropy().item()) < 1e-4


def test_gaussian_parts_and_structures(rng) -> None:
    head = heads.Gaussian(3, 2, noise_scale=[0.5, 2.0])
    h, y = normal(rng, 6, 3), normal(rng, 6, 2)
    p = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    found = uncertainty(head, p, h)
    law = head.predictive(h, p)
    torch.testing.assert_close(found.total, law.variance)
    torch.testing.assert_close(found.aleatoric[0], torch.tensor([0.25, 4.0]).double())
    torch.testing.assert_close(log_predictive_density(head, p, h, y), law.log_prob(y))
    diagonal = posteriors.DiagonalGaussian(p.mean, p.variance.reciprocal())
    for name in NAMES:
        other = make(name)
        q = priors.isotropic(other, 0.5)
        assert other.predictive(h, q).batch_shape == (6, 2)
    assert head.predictive(h, diagonal).batch_shape == (6, 2)


def test_masks_are_honoured_and_weights_left_out(rng) -> None:
    head = make("poisson")
    p, h, y = gaussian(rng, head), normal(rng, 5, 3), targets_of(rng, "poisson", 5)
    mask = torch.rand(5, 2, generator=rng) < 0.5
    full = log_predictive_density(head, p, h, y)
    found = log_predictive_density(head, p, h, (y, mask, 3 * torch.ones(5)))
    torch.testing.assert_close(found, torch.where(mask, full, 0.0))
    with pytest.raises(errors.SettingError, match="counts"):
        log_predictive_density(head, p, h, y - 10)
    with pytest.raises(errors.NonFiniteError):
        log_predictive_density(head, p, h * torch.nan, y)


def test_networks_and_the_engine(rng) -> None:
    """Heads inside others keep their predictive: classes for labels, two parts for numbers."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    h = torch.randn(5, 3, generator=rng)
    for likelihood, labels in ((heads.Heteroscedastic(3), False), (heads.Categorical(3, 2), True)):
        net = heads.Network(module, likelihood)
        y = torch.zeros(5, 1, dtype=torch.long if labels else torch.float32)
        mtl = ba.BayesAgg({"y": net}, inference=inference.Delta())
        backbone = torch.nn.Linear(3, 3)
        mtl.backward(backbone(h), {"y": y})
        draws = posteriors.Empirical(
            net.weight.detach() + 0.1 * torch.randn(20, 1, net.weight_size)
        )
        found = net.predictive(h, draws)
        assert found.batch_shape == (5, 1)
        assert log_predictive_density(net, draws, h, y).isfinite().all()
        assert (uncertainty(net, draws, h).epistemic > 0).all()
    last = heads.Network.last_layer(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)),
        heads.Poisson(3),
    )
    posterior = priors.isotropic(last, 0.1)
    assert last.predictive(h, posterior).mean.shape == (5, 1)


def test_the_parts_of_a_students_t_from_an_integrated_noise(rng) -> None:
    head = heads.Gaussian(3, 2)
    h, y = normal(rng, 30, 3), normal(rng, 30, 2)
    p = inference.IntegratedNoise().infer(head, h, y, priors.isotropic(head, 1.0))
    found = uncertainty(head, p, h)
    torch.testing.assert_close(found.total, head.predictive(h, p).variance)
    draws = head.predictive(h, p, method="samples", samples=4000)
    torch.testing.assert_close(found.epistemic, draws.epistemic_variance, rtol=0.2, atol=0)


@pytest.mark.parametrize("seen", [0, 3, 300])
def test_probabilities_and_quantiles_of_a_students_t(rng, seen) -> None:
    """In the targets' units, too, and in the tails."""
    mtl = ba.BayesAgg({"y": heads.Gaussian(2, 2)}, inference=inference.IntegratedNoise())
    h, y = normal(rng, 2 + seen, 2), 1e3 * normal(rng, 2 + seen, 2) + 1e6
    mtl.collect(h, {"y": y})
    mtl.update_prior()
    found = mtl.predictive(h[:2])["y"]
    df = 2 * mtl.posteriors()["y"].shape_parameter.numpy()
    scale = np.sqrt(found.variance.numpy() * (df - 2) / df)
    law = stats.t(df, found.mean.numpy(), scale)
    at = found.mean + torch.tensor([-1e6, -300.0, 0.0, 2e3, 9e4]).double()[:, None, None]
    below = law.cdf(at.numpy())
    np.testing.assert_allclose(found.cdf(at).numpy(), below, rtol=1e-7, atol=1e-20)
    for level in (1e-4, 0.05, 0.5, 0.9):
        q = found.icdf(torch.tensor(level))
        np.testing.assert_allclose(q.numpy(), law.ppf(float(torch.tensor(level))), rtol=1e-9)
    ends = found.standardised.icdf(torch.tensor([0.0, 1.0, 1.1])[:, None, None])[:, 0, 0]
    assert str(ends.tolist()) == "[-inf, inf, nan]"


@pytest.mark.parametrize(
    ("far", "kind"),
    [(3.0, heads.Poisson), (500.0, heads.Poisson), (5000.0, heads.NegativeBinomial)],
)
def test_densities_are_the_same_in_inference_mode(rng, far: float, kind: type) -> None:
    """Where autograd keeps no graph, the peak of the integrand is found all the same."""
    features = torch.randn(50, 3, generator=rng)
    head = kind(3, **({} if kind is heads.Poisson else {"dispersion": 0.5}))
    seen = torch.poisson(torch.ones(50, 1), generator=rng)
    posterior = inference.Laplace().infer(head, features, seen, priors.isotropic(head, 1.0))
    targets = torch.full((50, 1), far)
    plain = log_predictive_density(head, posterior, features, targets)
    with torch.inference_mode():
        same = log_predictive_density(head, posterior, features * 1, targets * 1)
    torch.testing.assert_close(same, plain, atol=0, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_support_is_the_likelihood_s(rng, name) -> None:
    """Of a Gaussian posterior's predictive and of one made of draws."""
    head = make(name)
    h, law = normal(rng, 5, 3), gaussian(rng, head)
    right = head.likelihood(head(h)).support
    for posterior in (law, posteriors.Empirical(law.sample((7,), generator=rng))):
        found = head.predictive(h, posterior)
        assert type(found.support) is type(right)
        assert found.support.check(found.sample((20,))).all()
        assert not found.support.check(torch.full((5, 2), torch.nan, dtype=F64)).any()
