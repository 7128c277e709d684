"""laplace-torch as a scheme: its posterior equals ours, in our order, where it has one."""

from __future__ import annotations

import builtins
import copy

import pytest
import torch
from problems import F64, Linear, normal

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, posteriors, priors

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:torch.jit"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit"),
]


@pytest.fixture(autouse=True)
def _needs_the_package() -> None:
    if __import__("importlib.util").util.find_spec("laplace") is None:
        pytest.skip("laplace-torch is not installed")


@pytest.mark.parametrize("at", ["map", "point"])
@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
def test_categorical(rng, structure, at) -> None:
    """Two tasks with holes and a bias, float32 features."""
    dtype = torch.get_default_dtype()
    head = heads.Categorical(3, 3, tasks=2)
    h = normal(rng, 20, 3).float()
    y = (torch.randint(0, 3, (20, 2), generator=rng), torch.rand(20, 2, generator=rng) < 0.7)
    prior = priors.isotropic(head, [0.5, 2.0])
    found = inference.LaplaceTorch(structure, at=at).infer(head, h, y, prior)
    point = inference.Laplace().infer(head, h, y, prior).mean if at == "map" else head.point()
    torch.testing.assert_close(found.mean, point.detach().double())
    with torch.no_grad():
        head.weight.copy_(found.weight_mean)
    ours = inference.TaylorGGN(structure, separate_bias=True).infer(head, h, y, prior)
    torch.testing.assert_close(
        found.to_gaussian().precision_matrix,
        ours.to_gaussian().precision_matrix,
        rtol=1e-5,
        atol=1e-5,
    )
    assert isinstance(found, posteriors.DiagonalGaussian) == (structure == "diag")
    assert found.outputs_per_task == 3
    assert torch.get_default_dtype() == dtype  # the package is run in float64


def test_regression_equals_conjugate(rng) -> None:
    p = Linear(rng)
    values, mask, _ = p.targets
    found = inference.LaplaceTorch().infer(p.head, p.features, (values, mask), p.prior)
    exact = inference.Conjugate().infer(p.head, p.features, (values, mask), p.prior)
    torch.testing.assert_close(found.mean, exact.mean)
    torch.testing.assert_close(found.covariance_matrix, exact.covariance_matrix)


def test_a_task_without_targets_keeps_the_prior(rng) -> None:
    head = heads.Gaussian(2, tasks=2)
    mask = torch.tensor([[True, False]]).expand(5, 2)
    prior = priors.isotropic(head, 0.3)
    found = inference.LaplaceTorch().infer(
        head, normal(rng, 5, 2), (normal(rng, 5, 2), mask), prior
    )
    torch.testing.assert_close(found.covariance_matrix[1], 0.3 * torch.eye(2, dtype=F64))


def test_what_the_package_lacks_is_said(rng) -> None:
    h = normal(rng, 4, 2)
    binary, real = torch.ones(4, 1, dtype=F64), normal(rng, 4, 1)
    classes = torch.tensor([0, 1, 2, 0])
    gaussian = heads.Gaussian(2).double()
    flat = priors.isotropic(gaussian, 1.0)
    weight = torch.full((4,), 2.0, dtype=F64)
    mixed = posteriors.DiagonalGaussian(flat.mean, torch.tensor([[1.0, 2.0]], dtype=F64))
    cases = [
        (heads.Bernoulli(2).double(), binary, None, "full", "Bernoulli heads"),
        (gaussian, (real, None, weight), flat, "full", "weights"),
        (heads.Categorical(2, 3, class_weight=[1.0, 2, 3]).double(), classes, None, "full", "wei"),
        (gaussian, real, flat.to_gaussian(), "full", "dense priors"),
        (gaussian, real, mixed, "kron", "vary"),
    ]
    for head, y, prior, structure, message in cases:
        prior = priors.isotropic(head, 1.0) if prior is None else prior
        with pytest.raises(errors.SettingError, match=message) as caught:
            inference.LaplaceTorch(structure).infer(head, h, y, prior)
        assert "inference.Laplace" in str(caught.value)
    draws = posteriors.Empirical(flat.sample((3,)))
    with pytest.raises(errors.DtypeError):
        inference.LaplaceTorch().infer(gaussian, h, real, draws)
    for wrong in ({"structure": "lowrank"}, {"at": "mean"}, {"refresh": 0}):
        with pytest.raises(errors.SettingError):
            inference.LaplaceTorch(**wrong)


def test_without_the_package(rng, monkeypatch) -> None:
    original = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "laplace":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    head = heads.Gaussian(2).double()
    with pytest.raises(errors.MissingPackageError, match=r"\[laplace\]"):
        inference.LaplaceTorch().infer(
            head, normal(rng, 3, 2), normal(rng, 3, 1), priors.isotropic(head, 1.0)
        )


def test_global_generator_is_untouched(rng) -> None:
    """Layers handed to the package are made without an initialisation of their own."""
    head = heads.Gaussian(3, bias=True)
    before = torch.get_rng_state()
    h, y = normal(rng, 9, 3), normal(rng, 9, 1)
    inference.LaplaceTorch().infer(head, h, y, priors.isotropic(head, 1.0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_regression_head_goes_on_learning_around_its_point(rng) -> None:
    """As under every scheme that expands there: its own weights predict, saved and loaded, too."""
    head = heads.Gaussian(2)
    mtl = ba.BayesAgg({"y": head}, inference=inference.LaplaceTorch(), warmup=False)
    h, y = normal(rng, 8, 2), {"y": normal(rng, 8, 1)}
    mtl.collect(h, y)
    mtl.update_prior()
    mtl.backward(h.clone().requires_grad_(), y)
    assert head.weight.grad is not None
    torch.testing.assert_close(mtl.predict(h)["y"], h @ head.weight.detach().to(h).mT)
    again = copy.deepcopy(mtl)
    again.load_state_dict(mtl.state_dict())  # with a dense prior, of which no posterior is made
    assert torch.equal(again.priors()["y"].mean, mtl.priors()["y"].mean)


def test_bad_features_are_refused_by_name(rng) -> None:
    p = Linear(rng)
    values, mask, _ = p.targets
    spoilt = p.features.clone()
    spoilt[0, 0] = torch.nan
    with pytest.raises(errors.NonFiniteError, match="feature 0 of example 0"):
        inference.LaplaceTorch().infer(p.head, spoilt, (values, mask), p.prior)


def test_a_weight_of_zero_is_a_missing_label(rng) -> None:
    p = Linear(rng)
    values, mask, _ = p.targets
    counted = torch.rand(values.shape, generator=rng) < 0.6
    weighted = (values, mask, counted.to(values))
    found = inference.LaplaceTorch().infer(p.head, p.features, weighted, p.prior)
    without = inference.LaplaceTorch().infer(p.head, p.features, (values, mask & counted), p.prior)
    torch.testing.assert_close(found.mean, without.mean)
    torch.testing.assert_close(found.precision_matrix, without.precision_matrix)


def test_weights_are_refused_when_they_come_and_bad_batches_are_left_out() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    mtl = ba.BayesAgg({"y": heads.Gaussian(2)}, inference=inference.LaplaceTorch())
    with pytest.raises(errors.SettingError, match="weights"):
        mtl.collect(x, {"y": (y, None, torch.full((8, 1), 2.0))})
    found = []
    for mode in ("now", "deferred"):
        torch.manual_seed(1)
        mtl = ba.BayesAgg(
            {"y": heads.Gaussian(2)}, inference=inference.LaplaceTorch(), validate=mode
        )
        mtl.collect(x, {"y": y})
        if mode == "deferred":
            mtl.collect(x * torch.nan, {"y": y})
            with pytest.raises(errors.NonFiniteError):
                mtl.raise_deferred()
        mtl.update_prior()
        found.append(mtl.priors()["y"].precision_matrix)
    torch.testing.assert_close(*found)
