"""What is predicted can be differentiated in the features, and only where they ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from likelihoods import F64, gaussian, normal
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import heads, linalg, posteriors
from bayesagg_pyro.predictive import (
    PredictiveDistribution,
    log_expectation,
    log_predictive_density,
    uncertainty,
)

B, D, T = 3, 3, 2


def _model(features: Tensor, targets: Tensor | None = None) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ weight, scale + 0.1), obs=targets)


def _classes(features: Tensor, targets: Tensor | None = None) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D, 3), 1.0).to_event(2))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Categorical(logits=features @ weight), obs=targets)


def _body() -> heads.Body:
    return heads.Body(nn.Sequential(nn.Linear(D, 4), nn.Tanh()), D)


def _placed(head: heads.GaussianProcess) -> heads.GaussianProcess:
    head.place(torch.randn(12, D, generator=torch.Generator().manual_seed(1)))
    return head


HEADS: dict[str, Callable[[], heads.Head]] = {
    "gaussian": lambda: heads.Gaussian(D, T, bias=True, noise_scale=[0.5, 2.0]),
    "bernoulli": lambda: heads.Bernoulli(D, T, pos_weight=3.0),
    "two classes": lambda: heads.Categorical(D, 2, tasks=T),
    "classes": lambda: heads.Categorical(D, 3, tasks=T, class_weight=[1.0, 2.0, 3.0]),
    "poisson": lambda: heads.Poisson(D, T),
    "negative binomial": lambda: heads.NegativeBinomial(D, T, dispersion=0.4),
    "student": lambda: heads.StudentT(D, T, df=[3.0, 8.0], scale=0.7, bias=True),
    "ordinal": lambda: heads.Ordinal(D, 4, T),
    "probit": lambda: heads.Ordinal(D, 4, T, link="probit"),
    "heteroscedastic": lambda: heads.Heteroscedastic(D, T),
    "embedded": lambda: heads.Bernoulli(D, T).embed(_body()),
    "process": lambda: _placed(heads.GaussianProcess(D, T, inducing=4)),
    "network": lambda: heads.Network(nn.Linear(D, T), heads.Poisson(D, T)),
    "pyro": lambda: heads.FromPyro(_model, D),
    "pyro classes": lambda: heads.FromPyro(_classes, D, target_kind="class"),
}
COUNTS = ("poisson", "negative binomial", "network")


def head_of(name: str) -> heads.Head:
    torch.manual_seed(3)
    return HEADS[name]().double()


def posterior_of(head: heads.Head, rng: torch.Generator) -> posteriors.Gaussian:
    size = head.weight_size
    root = normal(rng, head.blocks, size, size)
    s = 0.2 * (root @ root.mT / size + 0.1 * torch.eye(size, dtype=F64))
    mean = 0.5 * normal(rng, head.blocks, size)
    return posteriors.Gaussian(mean, torch.linalg.inv(s)).replace(
        outputs_per_task=head.outputs_per_task
    )


def targets_of(name: str, rng: torch.Generator, head: heads.Head) -> Tensor:
    shape = (B, head.tasks)
    if head.target_kind == "class":
        return torch.randint(0, 2, shape, generator=rng)
    if head.target_kind == "binary":
        return (torch.rand(shape, generator=rng) < 0.5).double()
    y = normal(rng, *shape)
    return (2 * y).exp().round() if name in COUNTS else y


def kinds(dense: posteriors.Gaussian) -> dict[str, Any]:
    """The posterior in every form; not the same distribution, but one of its shape."""
    outputs = dense.outputs_per_task
    mean, variance = dense.mean, dense.variance
    samples = dense.sample((6,), generator=torch.Generator().manual_seed(5))
    made = {
        "dense": dense,
        "diagonal": posteriors.DiagonalGaussian(mean, 1 / variance),
        "low rank": posteriors.LowRankGaussian(mean, 0.3 * samples[:2].movedim(0, -1), variance),
        "packed": posteriors.PackedGaussian.pack(dense, F64),
        "blocked": posteriors.BlockedGaussian(mean, *linalg.split_rows(dense.precision_matrix)),
        "samples": posteriors.Empirical(samples),
        "point": posteriors.Point(mean),
    }
    return {name: p.replace(outputs_per_task=outputs) for name, p in made.items()}


def agree(function: Callable[[Tensor], list[Tensor]], h: Tensor, rng: torch.Generator) -> None:
    """Derivatives along one direction, against central differences made without a graph."""
    direction, step = normal(rng, *h.shape), 1e-5
    h = h.detach()
    with torch.no_grad():
        up, down = function(h + step * direction), function(h - step * direction)
    h.requires_grad_()
    for value, above, below in zip(function(h), up, down, strict=True):
        weight = normal(rng, *value.shape)
        expected = (weight * (above - below)).sum() / (2 * step)
        found = torch.zeros((), dtype=F64)
        if value.requires_grad:
            (slope,) = torch.autograd.grad((weight * value).sum(), h, retain_graph=True)
            found = (slope * direction).sum()
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


def smooth(law: Any, y: Tensor) -> list[Tensor]:
    """Everything of a law that depends on the features."""
    found = [law.log_prob(y)]
    if hasattr(law, "probs") and hasattr(law, "logits"):
        return [*found, law.probs]
    found += [law.mean, law.variance]
    if isinstance(law, PredictiveDistribution):
        found += [law.epistemic_variance, law.aleatoric_variance]
    return found


@pytest.mark.parametrize("name", HEADS)
def test_every_head_against_finite_differences(name, rng) -> None:
    head = head_of(name)
    p, y = posterior_of(head, rng), targets_of(name, rng, head)

    def everything(h: Tensor) -> list[Tensor]:
        density = log_predictive_density(head, p, h, y, samples=5)
        return [density, *smooth(head.predictive(h, p, samples=5), y)]

    agree(everything, normal(rng, B, D), rng)


@pytest.mark.parametrize("name", [name for name in HEADS if not name.startswith("pyro")])
def test_both_parts_of_the_uncertainty(name, rng) -> None:
    head = head_of(name)
    p = posterior_of(head, rng)

    def parts(h: Tensor) -> list[Tensor]:
        found = uncertainty(head, p, h, samples=5)
        return [found.epistemic, found.aleatoric]

    agree(parts, normal(rng, B, D), rng)


@pytest.mark.parametrize("kind", ["dense", "diagonal", "low rank", "packed", "blocked", "samples"])
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "heteroscedastic", "student", "classes"])
def test_every_posterior(name, kind, rng) -> None:
    head = head_of(name)
    p, y = kinds(posterior_of(head, rng))[kind], targets_of(name, rng, head)
    agree(lambda h: smooth(head.predictive(h, p, samples=5), y), normal(rng, B, D), rng)


@pytest.mark.parametrize("method", ["probit", "samples"])
def test_other_methods(method, rng) -> None:
    head = head_of("bernoulli")
    p, y = posterior_of(head, rng), targets_of("bernoulli", rng, head)
    agree(
        lambda h: smooth(head.predictive(h, p, method=method, samples=5), y),
        normal(rng, B, D),
        rng,
    )


def test_integrated_noise(rng) -> None:
    head = head_of("gaussian")
    dense = posterior_of(head, rng)
    a, b = torch.tensor([3.0, 5.0], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)
    p = posteriors.NormalInverseGamma(dense.mean, dense.precision_matrix, a, b)
    y = targets_of("gaussian", rng, head)
    agree(lambda h: smooth(head.predictive(h, p), y), normal(rng, B, D), rng)
    agree(lambda h: [uncertainty(head, p, h).epistemic], normal(rng, B, D), rng)


def test_kronecker_posteriors(rng) -> None:
    head = head_of("heteroscedastic")
    g = normal(rng, T, 2, 2)
    a = normal(rng, 1, D + 1, D + 1)
    p = posteriors.KroneckerGaussian(
        0.5 * normal(rng, T, 2 * (D + 1)),
        g @ g.mT,
        a @ a.mT,
        torch.full((T,), 4.0, dtype=F64),
        torch.ones(1, dtype=F64),
    ).replace(outputs_per_task=2)
    y = targets_of("heteroscedastic", rng, head)
    agree(lambda h: smooth(head.predictive(h, p), y), normal(rng, B, D), rng)


def test_closed_forms_and_second_derivatives(rng) -> None:
    """d(hᵀm)/dh = m and d(hᵀSh)/dh = 2 S h, whose derivative is 2 S."""
    head = heads.Gaussian(D, T).double()
    p = gaussian(rng, head)
    h = normal(rng, B, D).requires_grad_()
    law = head.predictive(h, p)
    for task in range(T):
        (slope,) = torch.autograd.grad(law.mean[:, task].sum(), h, retain_graph=True)
        torch.testing.assert_close(slope, p.mean[task].expand(B, D))
        (slope,) = torch.autograd.grad(law.variance[:, task].sum(), h, create_graph=True)
        s = p.covariance_matrix[task]
        torch.testing.assert_close(slope, 2 * h @ s)
        (second,) = torch.autograd.grad(slope[:, 0].sum(), h, retain_graph=True)
        torch.testing.assert_close(second, 2 * s[0].expand(B, D))


@pytest.mark.parametrize("name", [n for n in HEADS if n not in ("embedded", "process")])
def test_at_the_origin_nothing_is_infinite(name, rng) -> None:
    """Without bias the variance of h = 0 is 0, and its root has no derivative."""
    head = head_of(name)
    if head.bias:
        head = type(head)(**_without_bias(name)).double()
    p, y = posterior_of(head, rng), targets_of(name, rng, head)
    h = torch.zeros(B, D, dtype=F64, requires_grad=True)
    for value in smooth(head.predictive(h, p, samples=5), y):
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), h, retain_graph=True)
            assert slope.isfinite().all()


def _without_bias(name: str) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "two classes": {"classes": 2},
        "classes": {"classes": 3},
        "negative binomial": {"dispersion": 0.4},
    }
    return {"in_features": D, "tasks": T, "bias": False, **own.get(name, {})}


def test_densities_far_out_have_finite_slopes(rng) -> None:
    """exp(u) overflows at nodes that carry no mass: 0 · ∞ must not come back."""
    head = heads.Poisson(1, bias=False).double()
    p = posteriors.Gaussian(torch.tensor([[3.0]], dtype=F64), torch.tensor([[[1e-4]]], dtype=F64))
    y = torch.tensor([[2.0]], dtype=F64)
    agree(lambda h: [head.predictive(h, p).log_prob(y)], torch.ones(1, 1, dtype=F64), rng)


def test_log_expectation_follows_what_the_function_is_made_of() -> None:
    """Log E exp(a z) = a² / 2."""
    a = torch.tensor([0.5, 2.0, 6.0], dtype=F64, requires_grad=True)
    found = log_expectation(lambda z: a * z, a)
    torch.testing.assert_close(found, a.square() / 2, rtol=1e-9, atol=0)
    (slope,) = torch.autograd.grad(found.sum(), a, create_graph=True)
    torch.testing.assert_close(slope, a, rtol=1e-9, atol=0)
    (second,) = torch.autograd.grad(slope.sum(), a)
    torch.testing.assert_close(second, torch.ones_like(a), rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_no_graph_unless_the_features_have_one(name, rng) -> None:
    """Kernels, networks and cut-points are parameters, which alone make none."""
    head = head_of(name)
    p, y = posterior_of(head, rng), targets_of(name, rng, head)
    h = normal(rng, B, D)
    own = [head.predictive(h, p, samples=5)]
    with torch.no_grad():
        own.append(head.predictive(h.clone().requires_grad_(), p, samples=5))
    for law in own:
        assert not any(value.requires_grad for value in smooth(law, y))
    if not name.startswith("pyro"):
        assert not uncertainty(head, p, h, samples=5).total.requires_grad


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "classes"])
def test_gradient_distributions_are_not_differentiated(name, rng) -> None:
    head = head_of(name)
    p, y = posterior_of(head, rng), targets_of(name, rng, head)
    h = normal(rng, B, D).requires_grad_()
    found = ba.gradients.distribution(head, p, h, y)
    assert not found.mean.requires_grad
    assert not found.variance.requires_grad


def test_the_engine_s_posteriors_carry_no_graph(rng) -> None:
    backbone = nn.Linear(D, D).double()
    mtl = ba.BayesAgg({name: head_of(name) for name in ("gaussian", "bernoulli", "ordinal")})
    x = normal(rng, 20, D)
    y = {
        "gaussian": normal(rng, 20, T),
        "bernoulli": (normal(rng, 20, T) > 0).double(),
        "ordinal": torch.randint(0, 4, (20, T), generator=rng),
    }
    mtl.backward(backbone(x), y)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(backbone(x), y)
    for found in (mtl.posteriors(), mtl.priors()):
        assert not any(t.requires_grad for p in found.values() for t in p.tensors().values())
    x.requires_grad_()
    for name, law in mtl.predictive(backbone(x)).items():
        (slope,) = torch.autograd.grad(law.log_prob(y[name]).sum(), x, retain_graph=True)
        assert slope.isfinite().all()
        assert (slope != 0).any()
