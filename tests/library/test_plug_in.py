"""The plug-in estimator: gradients at the posterior mean, variances of the posterior."""

from __future__ import annotations

import pytest
import torch
from oracles import case, close

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors
from bayesagg_pyro.gradients import GradientDistribution


def autograd(head, weight, features, targets):
    """∂ℓ/∂h at these weights, task by task."""
    rows = []
    for task in range(head.tasks):
        h = features.clone().requires_grad_()
        head.loss(head(h, weight), targets)[:, task].sum().backward()
        rows.append(h.grad)
    return torch.stack(rows)


def parts(rng) -> tuple[heads.Gaussian, torch.Tensor, torch.Tensor, GradientDistribution, object]:
    c = case(rng)
    posterior = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    exact = gradients.distribution(c.head, posterior, c.features, c.targets)
    return c.head, c.features, c.targets, exact, posterior


def test_mean_is_the_gradient_at_the_posterior_mean(rng) -> None:
    head, features, targets, exact, posterior = parts(rng)
    grad = gradients.distribution(head, posterior, features, targets, estimator=gradients.PlugIn())
    close(grad.mean, autograd(head, posterior.mean, features, targets))
    close(grad.variance, exact.variance)
    close(grad.covariance_matrix, exact.covariance_matrix)
    # what it leaves out is 2 S h
    cross = posterior.project(head.design_matrix(features)).cross[..., : head.in_features]
    close(exact.mean - grad.mean, (2 * cross).expand_as(grad.mean))


def test_works_for_binary_heads_with_masks_and_weights(rng) -> None:
    head = heads.Bernoulli(4, tasks=2).double()
    features = torch.randn(9, 4, generator=rng, dtype=torch.float64)
    values = (torch.rand(9, 2, generator=rng) < 0.5).double()
    mask = torch.rand(9, 2, generator=rng) < 0.7
    weight = torch.rand(9, 2, generator=rng) + 0.5
    prior = priors.isotropic(head, 2.0)
    posterior = inference.Laplace().infer(head, features, (values, mask, weight), prior)
    exact, plug_in = (
        gradients.distribution(
            head, posterior, features, (values, mask, weight), estimator=estimator
        )
        for estimator in (None, gradients.PlugIn())
    )
    expected = autograd(head, posterior.mean.detach(), features, values)
    expected = expected * (mask * weight).mT[..., None]
    close(plug_in.mean, expected, 1e-6)
    close(plug_in.variance, exact.variance)
    assert not torch.equal(plug_in.mean, exact.mean)


def test_samples_are_shifted_with_the_mean(rng) -> None:
    head, features, targets, _, posterior = parts(rng)
    grad = gradients.distribution(head, posterior, features, targets, estimator=gradients.PlugIn())
    draws = grad.sample((20000,), generator=rng)
    error = (grad.variance / 20000).sqrt()
    assert ((draws.mean(0) - grad.mean).abs() < 5 * error).all()


def test_serves_the_engine(rng) -> None:
    head = heads.Gaussian(4, tasks=3).double()
    mtl = ba.BayesAgg(
        {"y": head},
        aggregation.PrecisionWeighted.paper(power=0.5),
        estimator=gradients.PlugIn(),
        reduction="mean",
    )
    features = torch.randn(12, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = {"y": torch.randn(12, 3, generator=rng, dtype=torch.float64)}
    mtl.backward(features, targets)
    mtl.update_prior()
    mtl.start_bayes()
    features.grad = None
    mtl.backward(features, targets)
    posterior = mtl.schemes["y"].infer(head, features.detach(), targets["y"], mtl.priors()["y"])
    exact = gradients.distribution(head, posterior, features.detach(), targets["y"])
    weights = aggregation.PrecisionWeighted.paper(power=0.5).weights(exact)
    at_mean = autograd(head, posterior.mean, features.detach(), targets["y"])
    close(features.grad, (weights * at_mean).sum(0) / 12)


def test_at_the_weights_that_a_head_learns(rng) -> None:
    head = heads.Categorical(4, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=rng, dtype=torch.float64))
    features = torch.randn(9, 4, generator=rng, dtype=torch.float64)
    labels = torch.randint(3, (9,), generator=rng)
    posterior = inference.TaylorGGN().infer(head, features, labels, priors.isotropic(head, 2.0))
    drawn = gradients.Conditional(samples=2048)
    grad, exact = (
        gradients.distribution(head, posterior, features, labels, estimator=estimator)
        for estimator in (gradients.PlugIn(drawn, at="weights"), drawn)
    )
    h = features.clone().requires_grad_()
    torch.nn.functional.cross_entropy(head(h), labels, reduction="sum").backward()
    close(grad.mean[0], h.grad)
    close(grad.variance, exact.variance, 2e-2)
    assert (grad.mean - exact.mean).abs().max() > 0.1  # the posterior has seen the labels


def test_refuses_another_point() -> None:
    with pytest.raises(errors.SettingError, match="'posterior mean' or 'weights', not 'prior'"):
        gradients.PlugIn(at="prior")  # type: ignore[arg-type]
    assert repr(gradients.PlugIn(at="weights")) == "PlugIn(at='weights')"


def test_refuses_what_is_no_estimator() -> None:
    with pytest.raises(errors.DtypeError, match="estimator"):
        gradients.PlugIn("quadrature")
    assert "PlugIn(Quadrature" in repr(gradients.PlugIn(gradients.Quadrature()))
