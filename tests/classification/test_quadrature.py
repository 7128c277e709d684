"""Quadrature against a trapezoid of 20,001 points on |z| ≤ 40."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from dense import F64, close, gaussian, normal
from trapezoid import by_trapezoid, slope

from bayesagg_pyro import errors, gradients, heads, posteriors

MEANS = [-20.0, -8.0, -1.0, 0.0, 0.5, 5.0, 20.0]
STDS = [1e-4, 1e-2, 0.3, 1.0, 3.0, 6.0, 12.0, 30.0]


def world(rng, mean: float, std: float, kind: str, d: int = 24):
    """Mean [D], covariance [D, D] and features [D] with that logit mean and standard deviation.

    "random": a full covariance, d random directions k. "aligned": h along an axis and a diagonal
    covariance, so that |k| = sqrt(S_dd) there and 0 elsewhere. "far": |m| large and orthogonal to
    h, up to the mean wanted. "zero": m along h alone, 0 for a logit mean of 0.
    """
    root = normal(rng, d, d)
    s = root @ root.T / d + 1e-3 * torch.eye(d)
    h = normal(rng, d)
    if kind == "aligned":
        s, h = torch.diag(0.1 + torch.rand(d, generator=rng, dtype=F64)), torch.zeros(d).double()
        h[2] = 1.7
    h = h * std / (h @ s @ h).sqrt()
    m = {"random": 1.0, "aligned": 1.0, "far": 300.0, "zero": 0.0}[kind] * normal(rng, d)
    return m + h * (mean - h @ m) / (h @ h), s, h


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["random", "aligned", "far", "zero"])
def test_mean_and_variance_for_all_logits(rng, kind, y) -> None:
    """Within 1e-3 of the variance; measured: mean 6e-6 of a standard deviation, variance 6e-5.

    It costs 32 evaluations of f per task and example (Monte Carlo: 1,024 and the features).
    """
    head = heads.Bernoulli(24, bias=False).double()
    cases = list(itertools.product(MEANS, STDS))
    for mean, std in cases:
        m, s, h = world(rng, mean, std, kind)
        p = gaussian(m[None], s[None])
        found = gradients.distribution(
            head, p, h[None], torch.tensor([y]), estimator=gradients.Quadrature()
        )
        # the logit's moments as the posterior has them: h was scaled in floating point
        mu, sigma = h @ m, (h @ s @ h).sqrt()
        expected, variance = by_trapezoid(mu, sigma, y, m, s @ h / sigma, s.diagonal())
        error = (found.mean[0, 0] - expected).abs() / variance.sqrt()
        assert error.max() < 1e-3, (mean, std)
        error = (found.variance[0, 0] / variance - 1).abs()
        assert error.max() < 1e-3, (mean, std)


@pytest.mark.parametrize("std", [1e-4, 1.0, 30.0])
def test_more_nodes_converge(rng, std) -> None:
    """Each doubling gains digits, until rounding and the mass beyond the rule's range remain."""
    head = heads.Bernoulli(24, bias=False).double()
    m, s, h = world(rng, 2.0, std, "random")
    p, y = gaussian(m[None], s[None]), torch.zeros(1).double()
    mu, sigma = h @ m, (h @ s @ h).sqrt()
    _, variance = by_trapezoid(mu, sigma, 0.0, m, s @ h / sigma, s.diagonal())
    worst = []
    for nodes in (8, 16, 32, 64):
        q = gradients.Quadrature(nodes)
        found = gradients.distribution(head, p, h[None], y, estimator=q)
        worst.append((found.variance[0, 0] / variance - 1).abs().max().item())
    assert worst[3] < 1e-6
    assert worst[2] < 0.1 * worst[0] or worst[2] < 1e-6


def test_the_trapezoid_agrees_with_scipy() -> None:
    """The reference itself, against adaptive quadrature split where the integrand bends."""
    integrate = pytest.importorskip("scipy.integrate")
    m, k, s = torch.tensor([[0.7], [-0.4], [0.9]], dtype=F64)
    for mean, std in [(-20.0, 30.0), (2.0, 0.5), (20.0, 4.0)]:
        expected, variance = by_trapezoid(mean, std, 1.0, m, k, s)

        def density(z: float) -> float:
            return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

        def f(z: float, mean: float = mean, std: float = std) -> float:
            return slope(torch.tensor(mean + std * z, dtype=F64), 1.0).item()

        def conditional(z: float) -> float:
            return (m + k * z).item() * f(z)

        cuts = sorted({-12.0, 12.0, max(-12.0, min(12.0, -mean / std))})
        pieces = list(itertools.pairwise(cuts))

        def integral(function, pieces=pieces) -> float:
            return sum(
                integrate.quad(function, a, b, epsabs=0, epsrel=1e-9, limit=200)[0]
                for a, b in pieces
            )

        e = integral(lambda z: density(z) * conditional(z))
        v = integral(
            lambda z, e=e: density(z) * ((conditional(z) - e) ** 2 + (s - k**2).item() * f(z) ** 2)
        )
        assert abs(expected.item() / e - 1) < 1e-7
        assert abs(variance.item() / v - 1) < 1e-7


def test_full_covariance_equals_that_of_two_million_draws(rng) -> None:
    d, n = 4, 500_000
    m, s, h = world(rng, 1.0, 2.0, "random", d)
    head = heads.Bernoulli(d, bias=False).double()
    for y in (0.0, 1.0):
        found = gradients.distribution(head, gaussian(m[None], s[None]), h[None], torch.tensor([y]))
        count, total, second, fourth = 0, 0, 0, 0
        for _ in range(4):
            w = m + normal(rng, n, d) @ torch.linalg.cholesky(s).T
            g = w * slope(w @ h, y)[:, None] - found.mean[0, 0]
            products = g[:, :, None] * g[:, None]
            count += n
            total = total + g.sum(0)
            second = second + products.sum(0)
            fourth = fourth + products.square().sum(0)
        second = second / count
        error = ((fourth / count - second.square()) / count).sqrt()
        covariance = found.covariance_matrix[0, 0]
        assert ((covariance - second).abs() < 5 * error).all()
        close(covariance.diagonal(), found.variance[0, 0], 1e-10)
        assert ((total / count).abs() < 5 * (second.diagonal() / count).sqrt()).all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("weights", [None, [0.5, 3.0]])
def test_two_classes_are_a_bernoulli_head_of_the_difference(rng, scale, weights) -> None:
    d, tasks = 5, 3
    two = heads.Categorical(d, 2, tasks=tasks, class_weight=weights).double()
    root = scale * normal(rng, tasks, 2 * (d + 1), 2 * (d + 1)) / 3
    s, m = root @ root.mT + 1e-3 * torch.eye(2 * (d + 1)), normal(rng, tasks, 2 * (d + 1))
    h, y = normal(rng, 7, d), torch.randint(0, 2, (7, tasks), generator=rng)
    p = gaussian(m, s, 2)
    assert isinstance(gradients._dispatch.default_estimator(two, p), gradients.Quadrature)
    found = gradients.distribution(two, p, h, y)
    difference = torch.cat([-torch.eye(d + 1), torch.eye(d + 1)], 1).double()
    one = heads.Bernoulli(d, tasks).double()
    q = gaussian(m @ difference.T, difference @ s @ difference.T)
    expected = gradients.distribution(one, q, h, y.double())
    factor = torch.ones(tasks, 7).double() if weights is None else torch.tensor(weights)[y.T]
    close(found.mean, expected.mean * factor[..., None], 1e-8)
    close(found.variance, expected.variance * factor[..., None] ** 2, 1e-8)
    close(found.covariance_matrix, expected.covariance_matrix * factor[..., None, None] ** 2, 1e-8)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_two_classes_with_structured_posteriors(rng, structure) -> None:
    d = 4
    head = heads.Categorical(d, 2, bias=False).double()
    h, y = normal(rng, 6, d), torch.randint(0, 2, (6,), generator=rng)
    if structure == "diag":
        p = posteriors.DiagonalGaussian(normal(rng, 1, 8), 0.5 + torch.rand(1, 8).double())
    else:
        outputs = torch.tensor([[[2.0, -2.0], [-2.0, 2.0]]]).double()
        inputs = (h.T @ h)[None]
        one = torch.ones(1).double()
        p = posteriors.KroneckerGaussian(normal(rng, 1, 8), outputs, inputs, 6 * one, one)
    p = p.replace(outputs_per_task=2)
    found = gradients.distribution(head, p, h, y)
    expected = gradients.distribution(head, p.to_gaussian(), h, y)
    close(found.mean, expected.mean)
    close(found.variance, expected.variance)


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_a_certain_logit(rng, y) -> None:
    """No features, no bias, so v = 0. E g = m f(0), Var g = S_dd f(0)², and nothing is divided."""
    head = heads.Bernoulli(3, bias=False).double()
    m, s, _ = world(rng, 0.0, 1.0, "random", 3)
    h = torch.zeros(2, 3).double()
    found = gradients.distribution(head, gaussian(m[None], s[None]), h, torch.tensor([y, y]))
    close(found.mean[0], (m * (0.5 - y)).expand(2, 3))
    close(found.variance[0], (s.diagonal() / 4).expand(2, 3))
    close(found.covariance_matrix[0], (s / 4).expand(2, 3, 3))


def test_without_uncertainty_it_is_the_plain_gradient(rng) -> None:
    """A posterior of variance 1e-24 is Delta: E g is the gradient at m, the variance vanishes."""
    head = heads.Bernoulli(3, 2, pos_weight=[0.5, 2.0]).double()
    p = posteriors.DiagonalGaussian(normal(rng, 2, 4), torch.full((2, 4), 1e24).double())
    h, y = normal(rng, 6, 3), (torch.rand(6, 2, generator=rng) < 0.5).double()
    found = gradients.distribution(head, p, h, y)
    for t in range(2):
        x = h.clone().requires_grad_()
        (g,) = torch.autograd.grad(head.loss(head(x, p.mean), y)[:, t].sum(), x)
        close(found.mean[t], g, 1e-9)
    assert (found.variance < 1e-22).all()


class Focal(heads.Bernoulli):
    """A loss of one's own; the likelihood stays."""

    def loss(self, outputs, targets):
        p = torch.sigmoid((1 - 2 * targets) * outputs)
        return p**2 * super().loss(outputs, targets)


class Probit(heads.Bernoulli):
    """A likelihood of one's own."""

    def likelihood(self, outputs):
        p = torch.distributions.Normal(0.0, 1.0).cdf(outputs).clamp(1e-12, 1 - 1e-12)
        return torch.distributions.Bernoulli(probs=p, validate_args=False)

    def negative_log_prob(self, outputs, targets):
        return -self.likelihood(outputs).log_prob(targets)


@pytest.mark.parametrize("kind", [Focal, Probit])
def test_a_subclass_with_a_loss_of_its_own(rng, kind) -> None:
    """Its derivative comes from automatic differentiation, not from the base's formula."""
    head, base = kind(3, 2).double(), heads.Bernoulli(3, 2).double()
    p = posteriors.DiagonalGaussian(normal(rng, 2, 4), torch.full((1, 4), 4.0).double())
    h, y = normal(rng, 5, 3), (torch.rand(5, 2, generator=rng) < 0.5).double()
    found = gradients.distribution(head, p, h, y, estimator=gradients.Quadrature(64))
    n = 40_000
    sampled = gradients.distribution(
        head, p, h, y, estimator=gradients.MonteCarlo(n), generator=rng
    )
    error = sampled.variance.sqrt() / n**0.5
    assert ((found.mean - sampled.mean).abs() < 5 * error).all()
    assert ((found.variance / sampled.variance - 1).abs() < 0.15).all()
    other = gradients.distribution(base, p, h, y)
    assert ((found.mean - other.mean).abs() > 20 * error).any()


def test_heads_and_posteriors_without_a_rule(rng) -> None:
    head = heads.Categorical(3, 3, name="animal")
    p = posteriors.DiagonalGaussian(torch.zeros(1, 12).double(), torch.ones(1, 12).double())
    h, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(errors.DtypeError, match=r"animal.*Conditional"):
        gradients.distribution(head, p, h, y, estimator=gradients.Quadrature())
    one = heads.Bernoulli(3)
    samples = posteriors.Empirical(torch.zeros(2, 1, 4).double())
    with pytest.raises(errors.DtypeError, match="MonteCarlo"):
        gradients.distribution(one, samples, h, y, estimator=gradients.Quadrature())
    with pytest.raises(errors.SettingError, match="nodes must be an integer of at least 8"):
        gradients.Quadrature(7)
