"""Which formula: chosen by types, extended from outside the package."""

from __future__ import annotations

import warnings

import pyro.distributions as dist
import pytest
import torch
from oracles import case, close

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, heads, inference, posteriors, priors
from bayesagg_pyro.gradients import sampled_gradients
from bayesagg_pyro.targets import Targets

pytestmark = pytest.mark.usefixtures("registry")


class Poisson(heads.Head):
    """Counts, written as a user would: a likelihood and nothing else."""

    def likelihood(self, outputs):
        return dist.Poisson(outputs.exp())


class StudentT(heads.Head):
    def likelihood(self, outputs):
        return dist.StudentT(4.0, outputs, 0.5)


def marked(value: float):
    def formula(head, posterior, features, targets):
        full = features.new_full((head.tasks, *features.shape), value)
        return gradients.GradientDistribution(full, full.abs())

    return formula


def chosen(head, posterior, rng) -> float:
    features = torch.randn(3, head.in_features, generator=rng)
    targets = torch.zeros(3, head.tasks)
    grad = gradients.distribution(head, posterior, features, targets)
    return grad.mean[0, 0, 0].item()


def standard(head: heads.Head) -> posteriors.Gaussian:
    size = head.weight_size
    return posteriors.Gaussian(
        torch.zeros(head.tasks, size).double(), torch.eye(size).double()[None]
    )


def test_a_pair_registered_from_outside_is_used(rng) -> None:
    class Mine(heads.Head):
        def likelihood(self, outputs):
            return dist.Laplace(outputs, 1.0)

    head = Mine(3, tasks=2)
    with pytest.raises(NotImplementedError, match=r"Mine.*Gaussian"):
        gradients.distribution(
            head,
            standard(head),
            torch.randn(3, 3, generator=rng),
            torch.zeros(3, 2),
            estimator=gradients.Exact(),
        )
    gradients.register(Mine, posteriors.Gaussian)(marked(7.0))
    assert chosen(head, standard(head), rng) == 7.0

    class Child(Mine):
        pass

    assert chosen(Child(3), standard(Child(3)), rng) == 7.0  # subclasses inherit


def test_register_returns_the_function() -> None:
    formula = marked(1.0)
    assert gradients.register(Poisson, posteriors.Gaussian)(formula) is formula


def test_the_most_specific_pair_wins(rng) -> None:
    class Base(Poisson):
        pass

    class Derived(Base):
        pass

    class Narrow(posteriors.Gaussian):
        pass

    gradients.register(Base, posteriors.Posterior)(marked(1.0))
    gradients.register(Derived, posteriors.Posterior)(marked(2.0))
    gradients.register(Derived, posteriors.Gaussian)(marked(3.0))
    head = Derived(3)
    p = standard(head)
    assert chosen(head, p, rng) == 3.0
    narrow = Narrow(p.mean, p.precision_matrix)
    assert chosen(head, narrow, rng) == 3.0
    gradients.register(Derived, Narrow)(marked(4.0))
    assert chosen(head, narrow, rng) == 4.0
    assert chosen(head, p, rng) == 3.0
    empirical = posteriors.Empirical(p.sample((4,), generator=rng))
    assert chosen(head, empirical, rng) == 2.0
    assert chosen(Base(3), standard(Base(3)), rng) == 1.0


def test_an_ambiguous_choice_warns_and_names_both(rng) -> None:
    class Child(Poisson):
        pass

    gradients.register(Child, posteriors.Posterior)(marked(1.0))
    gradients.register(Poisson, posteriors.Gaussian)(marked(2.0))
    head = Child(3)
    with pytest.warns(RuntimeWarning, match=r"ambiguous.*\(Child, Posterior\).*\(Poisson, Gauss"):
        assert chosen(head, standard(head), rng) in (1.0, 2.0)
    gradients.register(Child, posteriors.Gaussian)(marked(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen(head, standard(head), rng) == 3.0


def test_a_subclass_with_another_loss_does_not_inherit_the_formula(rng) -> None:
    class Huber(heads.Gaussian):
        def loss(self, outputs, targets):
            return torch.nn.functional.huber_loss(
                outputs, targets.expand_as(outputs), reduction="none"
            )

    class Plain(heads.Gaussian):
        def extra_repr(self) -> str:
            return "the same model"

    c = case(rng, n=3)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    exact = gradients.distribution(c.head, p, c.features, c.targets)
    plain = Plain(4, tasks=3)
    same = gradients.distribution(plain, p, c.features, c.targets, estimator=gradients.Exact())
    assert torch.equal(same.mean, exact.mean)
    huber = Huber(4, tasks=3)
    with pytest.raises(NotImplementedError, match=r"Huber.*Gaussian"):
        gradients.distribution(huber, p, c.features, c.targets, estimator=gradients.Exact())
    far = c.targets + 1e3  # linear there: the gradient is −w
    grad = gradients.distribution(huber, p, c.features, far, generator=rng)
    assert ((grad.mean + p.mean[:, None]).abs() < 6 * (p.variance[:, None] / 1024).sqrt()).all()


@pytest.mark.parametrize("change", ["forward", "likelihood", "design"])
def test_nor_one_with_another_model(rng, change) -> None:
    body = {change: lambda self, *args, **kw: getattr(heads.Gaussian, change)(self, *args, **kw)}
    other = type("Other", (heads.Gaussian,), body)(3)
    with pytest.raises(NotImplementedError, match="Other"):
        gradients.distribution(
            other,
            standard(other),
            torch.randn(2, 3, generator=rng),
            torch.zeros(2, 1),
            estimator=gradients.Exact(),
        )


@pytest.mark.parametrize("kind", [Poisson, StudentT])
@pytest.mark.parametrize("masked", [False, True])
def test_a_home_made_head_through_samples(rng, kind, masked) -> None:
    """Each gradient by hand: Poisson (eᶠ − y) w, Student-t (ν + 1)(f − y) / (ν s² + (f − y)²) w."""
    head = kind(3, tasks=2)
    features = torch.randn(5, 3, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 4, (5, 2), generator=rng).double()
    mask = torch.rand(5, 2, generator=rng) < 0.6 if masked else None
    parsed = Targets(targets, mask)
    p = priors.isotropic(head, 0.1)
    weights = p.sample((2000,), generator=rng)
    got = sampled_gradients(head, weights, features, parsed)
    f = torch.einsum("bd,std->stb", features, weights)
    r = f - targets.T
    slope = f.exp() - targets.T if kind is Poisson else 5 * r / (4 * 0.25 + r**2)
    expected = slope[..., None] * weights[:, :, None]
    if mask is not None:
        expected = expected * mask.T[..., None]
    close(got, expected, 1e-9)
    raw = targets if mask is None else (targets, mask)
    grad = gradients.distribution(head, p, features, raw, generator=rng)  # no formula: samples
    error = (expected.var(0) * (1 / 1024 + 1 / 2000)).sqrt()
    assert ((grad.mean - expected.mean(0)).abs() <= 5 * error).all()


def test_the_engine_takes_a_home_made_head_with_a_home_made_scheme(rng) -> None:
    """Poisson counts beside a Gaussian head, one Newton step from the point as the scheme."""

    class Newton(inference.Scheme):
        needs_point = True

        def infer(self, head, features, targets, prior, *, start=None, generator=None):
            h, y = head.design_matrix(features), head.parse_targets(targets, len(features)).values
            w = head.weight.detach().to(h.dtype)
            rate = (h @ w.T).exp()
            curvature = torch.einsum("bt,bd,be->tde", rate, h, h) + prior.precision_matrix
            slope = (y - rate).T @ h - (prior.precision_matrix @ (w - prior.mean)[..., None])[
                ..., 0
            ]
            mean = w + torch.linalg.solve(curvature, slope[..., None])[..., 0]
            return posteriors.Gaussian(mean, curvature)

    mtl = ba.BayesAgg(
        {"count": Poisson(3, tasks=2), "value": heads.Gaussian(3)},
        inference={"count": Newton(), "value": inference.Conjugate()},
        generator=rng,
    )
    x = torch.randn(16, 3, generator=rng)
    targets = {"count": torch.poisson(x[:, :2].exp(), generator=rng), "value": x[:, :1]}
    backbone = torch.nn.Linear(3, 3)
    mtl.backward(backbone(x), targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.zero_grad(set_to_none=True)
    backbone.zero_grad(set_to_none=True)
    losses = mtl.backward(backbone(x), targets)
    assert backbone.weight.grad.isfinite().all()
    assert backbone.weight.grad.abs().max() > 0
    count, value = mtl.heads["count"], mtl.heads["value"]
    assert value.weight.grad is None  # conjugate: never by gradient
    h = backbone(x).detach()
    loss = count.loss(h @ count.weight.T, targets["count"]).mean(0)
    torch.testing.assert_close(losses["count"], loss.detach())
    (expected,) = torch.autograd.grad(loss.sum(), count.weight)
    torch.testing.assert_close(count.weight.grad, expected)
