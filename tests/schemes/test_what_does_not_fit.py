"""Parts that do not fit each other are refused when an engine is made."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors


class Absolute(heads.OnePredictor):
    """Of −log p = |y − u| + log 2, whose second derivative is 0."""

    def likelihood(self, outputs):
        return dist.Laplace(outputs, 1.0)


class Curved(Absolute):
    """With Fisher's information in its place."""

    def nll_derivatives(self, outputs, targets):
        return (outputs - targets).sign(), torch.ones_like(outputs)


def _dense(head: heads.Head) -> posteriors.GaussianFamily:
    size = head.weight_size
    return priors.dense(head, torch.eye(size) + 0.1)


MISFITS: dict[str, tuple[heads.Head, dict[str, Any], type[Exception]]] = {
    "a density without curvature": (Absolute(2), {}, errors.SettingError),
    "a density without curvature on a network": (
        heads.Network(torch.nn.Linear(3, 1), Absolute(3)),
        {"inference": inference.Laplace("diag"), "prior": priors.PreviousBatch()},
        errors.SettingError,
    ),
    "diagonal curvature on a dense prior": (
        heads.Bernoulli(2),
        {"inference": inference.TaylorGGN("diag"), "prior": priors.FullData(base=_dense)},
        errors.SettingError,
    ),
    "Kronecker curvature on a prior that varies": (
        heads.Categorical(2, 3),
        {
            "inference": inference.Laplace("kron"),
            "prior": priors.Constant(base=lambda h: priors.weight_and_bias(h, 1.0, 10.0)),
        },
        errors.SettingError,
    ),
    "a student's posterior in place": (
        heads.Gaussian(2),
        {"inference": inference.IntegratedNoise(), "prior": priors.FullData(in_place=True)},
        errors.SettingError,
    ),
    "samples in place": (
        heads.Bernoulli(2),
        {"inference": inference.Ensemble(), "prior": priors.FullData(in_place=True)},
        errors.SettingError,
    ),
    "samples packed": (
        heads.Bernoulli(2),
        {"inference": inference.NUTS(), "prior": priors.FullData(dtype=torch.float32)},
        errors.SettingError,
    ),
    "factors packed": (
        heads.Categorical(2, 3),
        {
            "inference": inference.TaylorGGN("kron"),
            "prior": priors.FullData(dtype=torch.float32),
        },
        errors.SettingError,
    ),
    "a point tempered": (
        heads.Bernoulli(2),
        {"inference": inference.Delta(), "prior": priors.FullData(temperature=2.0)},
        errors.SettingError,
    ),
    "a package that tempers nothing": (
        heads.Gaussian(2),
        {"inference": inference.LaplaceTorch(), "prior": priors.FullData(temperature=2.0)},
        errors.SettingError,
    ),
    "samples forgotten": (
        heads.Bernoulli(2),
        {"inference": inference.Ensemble(), "prior": priors.PreviousBatch()},
        errors.DtypeError,
    ),
    "the evidence of samples": (
        heads.Bernoulli(2),
        {"inference": inference.Ensemble(), "prior": priors.FullData("learned")},
        errors.DtypeError,
    ),
    "a package that takes no dense prior": (
        heads.Gaussian(2),
        {"inference": inference.LaplaceTorch(refresh="step")},
        errors.SettingError,
    ),
    "a head that the package has no likelihood for": (
        heads.Poisson(2),
        {"inference": inference.LaplaceTorch()},
        errors.SettingError,
    ),
    "noise for labels": (
        heads.Bernoulli(2),
        {"inference": inference.Ensemble(data="noise")},
        errors.SettingError,
    ),
    "quadrature over several outputs": (
        heads.Categorical(2, 3),
        {"estimator": gradients.Quadrature()},
        errors.DtypeError,
    ),
    "quadrature over samples": (
        heads.Bernoulli(2),
        {"inference": inference.Ensemble(), "estimator": gradients.Quadrature()},
        errors.DtypeError,
    ),
    "conditional samples of one output": (
        heads.Gaussian(2),
        {"estimator": gradients.Conditional()},
        errors.DtypeError,
    ),
    "no formula": (
        heads.Bernoulli(2),
        {"estimator": gradients.Exact()},
        errors.UnsupportedError,
    ),
    "no formula inside": (
        heads.Bernoulli(2),
        {"estimator": gradients.PlugIn(gradients.Exact())},
        errors.UnsupportedError,
    ),
    "the evidence of a noise integrated out": (
        heads.Gaussian(2),
        {"inference": inference.IntegratedNoise(), "prior": priors.FullData("learned")},
        errors.DtypeError,
    ),
    "a learned variance without data": (
        heads.Bernoulli(2),
        {"prior": priors.PreviousBatch(variance="learned")},
        errors.SettingError,
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused_at_once(name: str) -> None:
    head, settings, error = MISFITS[name]
    with pytest.raises(error, match=r"\w"):
        ba.BayesAgg({"y": head}, **settings)
    assert head.name is None


def test_a_density_without_curvature_has_remedies() -> None:
    h, y, head = torch.randn(5, 2), torch.randn(5, 1), Absolute(2)
    prior = priors.isotropic(head, 1.0)
    with pytest.raises(errors.SettingError, match=r"'y'.* Absolute .*nll_derivatives.*Variational"):
        ba.BayesAgg({"y": Absolute(2)})
    with pytest.raises(errors.SettingError, match="no curvature anywhere"):
        inference.TaylorGGN().infer(head, h, y, prior)
    ba.BayesAgg({"y": Absolute(2)}, inference=inference.Variational())
    ba.BayesAgg({"y": Curved(2)})


def test_a_scheme_that_says_nothing_is_taken() -> None:
    class Mine(inference.Scheme):
        def infer(self, head, features, targets, prior, *, start=None, generator=None):
            return inference.Laplace().infer(head, features, targets, prior)

    mtl = ba.BayesAgg(
        {"y": heads.Bernoulli(2)},
        inference=Mine(),
        prior=priors.FullData(in_place=True),
        estimator=gradients.Quadrature(),
        warmup=False,
    )
    x, y = torch.randn(6, 2, requires_grad=True), torch.ones(6, 1)
    mtl.collect(x, {"y": y})
    mtl.update_prior()
    mtl.backward(x, {"y": y})
    assert x.grad is not None


@pytest.mark.parametrize("scheme", [inference.Variational(steps=3), inference.Ensemble(members=4)])
def test_nothing_collects_gradients_while_a_scheme_iterates(scheme) -> None:
    head = heads.Ordinal(2, 3, cutpoints=[-1.0, 1.0])
    head.embed(heads.Body(torch.nn.Linear(2, 2), 2))
    mtl = ba.BayesAgg({"y": head}, inference=scheme)
    mtl.collect(torch.randn(6, 2), {"y": torch.randint(3, (6, 1))})
    mtl.update_prior()
    assert all(weight.grad is None for weight in head.parameters())
    assert any(weight.requires_grad for weight in head.parameters())


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_a_weight_scales_the_gradient_without_end(factor: float) -> None:
    torch.manual_seed(0)
    head = heads.Bernoulli(3, 2)
    posterior = posteriors.Gaussian(torch.randn(2, 4).double(), torch.eye(4).double()[None] * 3)
    x, y = torch.randn(5, 3), (torch.rand(5, 2) > 0.5).float()
    plain = gradients.distribution(head, posterior, x, y)
    weight = torch.full((5, 2), factor)
    found = gradients.distribution(head, posterior, x, (y, None, weight))
    exact = float(weight[0, 0])
    torch.testing.assert_close(found.mean / exact, plain.mean.double())
    torch.testing.assert_close(found.variance / exact**2, plain.variance.double())


@pytest.mark.parametrize(
    "method",
    [
        aggregation.PrecisionWeighted(1.0, covariance="full", resolution="dimension"),
        aggregation.PrecisionWeighted(1.0, covariance="full", resolution="example"),
        aggregation.PerSample(aggregation.PrecisionWeighted(), samples=2),
    ],
    ids=str,
)
def test_pieces_of_tasks_have_all_that_can_be_asked_for(method) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 3).double(), (torch.rand(6, 4) > 0.5).double()
    updates = []
    for memory in (None, 700):
        torch.manual_seed(1)
        mtl = ba.BayesAgg({"y": heads.Bernoulli(3, 4)}, method, warmup=False, working_memory=memory)
        mtl.collect(x, {"y": y})
        mtl.update_prior()
        leaf = x.clone().requires_grad_()
        if "PerSample" in str(method):
            mtl.aggregation = aggregation.PerSample(
                aggregation.PrecisionWeighted(),
                samples=2,
                generator=torch.Generator().manual_seed(3),
            )
        mtl.backward(leaf, {"y": y})
        updates.append(leaf.grad)
    if "PerSample" in str(method):  # other draws
        assert all(update.isfinite().all() and update.any() for update in updates)
    else:
        torch.testing.assert_close(*updates)
