"""Very many tasks: what aggregation needs of their gradients, without moments of each example."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, priors
from bayesagg_pyro.gradients import _closed_forms, _samples
from bayesagg_pyro.gradients._lazy import Certain, Factored, Joined, Lazy
from bayesagg_pyro.posteriors import DiagonalGaussian

HEADS = {
    "binary": lambda: heads.Bernoulli(5, 3, pos_weight=[1.0, 2.0, 3.0]),
    "counts": lambda: heads.NegativeBinomial(5, 3, dispersion=2.0, bias=True),
    "robust": lambda: heads.StudentT(5, 3, bias=True),
    "ordered": lambda: heads.Ordinal(5, 2, 3, bias=True),  # whose cut-points learn
}


def _case(rng: torch.Generator, kind: str, holes: bool, dtype: torch.dtype = torch.float64):  # type: ignore[no-untyped-def]
    head = HEADS[kind]().to(dtype)
    features = torch.randn(7, 5, generator=rng, dtype=torch.float64).to(dtype)
    features[2] = 0
    if kind == "robust":
        targets = torch.randn(7, 3, generator=rng, dtype=torch.float64).to(dtype)
    else:
        labels = torch.rand(7, 3, generator=rng) < 0.4
        targets = labels.long() if kind == "ordered" else labels.to(dtype)
    mean = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    precision = torch.rand(3, 6, generator=rng, dtype=torch.float64) * 10 + 0.05
    mask = torch.rand(7, 3, generator=rng) < 0.6
    mask[:, 1] = False
    given = (targets, mask) if holes else targets
    return head, DiagonalGaussian(mean, precision), features, given


@pytest.fixture
def everything_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_samples, "CACHE", 0)


@pytest.mark.usefixtures("everything_large")
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_directions_and_weights_are_those_of_all_moments(
    rng: torch.Generator, kind: str, holes: bool
) -> None:
    head, posterior, features, targets = _case(rng, kind, holes)
    whole = gradients.distribution(head, posterior, features, targets)
    lazy = gradients.distribution(head, posterior, features, targets, average=True)
    assert isinstance(lazy, Factored)
    assert lazy.shape == whole.shape
    torch.testing.assert_close(lazy.averaged(), whole.averaged(), rtol=1e-10, atol=0)
    for method in (
        aggregation.PrecisionWeighted(),
        aggregation.PrecisionWeighted(1.0, resolution="dimension"),
        aggregation.PrecisionWeighted([0.2, 0.5, 0.9], floor=0.5, max_ratio=3.0),
        aggregation.Sum(),
        aggregation.Bargain(),
        aggregation.PrecisionWeighted.paper(),  # looks at the variance of each example
    ):
        found, wanted = method.aggregate(lazy), method.aggregate(whole)
        torch.testing.assert_close(found.direction, wanted.direction, rtol=1e-9, atol=1e-13)
        assert found.weights is not None
        torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-9, atol=1e-13)


@pytest.mark.usefixtures("everything_large")
@pytest.mark.parametrize("holes", ["none", "for all tasks", "each its own"])
def test_gaussian_heads_add_up_averages(
    rng: torch.Generator, holes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_closed_forms, "CACHE", 12 * 16)  # two rows at a time
    head = heads.Gaussian(5, 3, bias=True).double()
    features, y = (torch.randn(7, n, generator=rng, dtype=torch.float64) for n in (5, 3))
    mask = None if holes == "none" else torch.rand(7, 3, generator=rng) < 0.6
    if mask is not None and holes == "for all tasks":
        mask = mask[:, :1].expand(7, 3)
    elif mask is not None:
        mask[:, 1] = False
    targets = y if mask is None else (y, mask)
    posterior = inference.Conjugate().infer(head, features, targets, priors.isotropic(head, 0.5))
    assert len(posterior.precision_matrix) == (3 if holes == "each its own" else 1)
    whole, lazy = (
        gradients.distribution(head, posterior, features, targets, average=average)
        for average in (False, True)
    )
    assert isinstance(lazy, Lazy)
    torch.testing.assert_close(lazy.averaged(), whole.averaged(), rtol=1e-10, atol=0)
    for shape in (3, 1, 1), (3, 1, 5), (3, 7, 1):
        weights = torch.rand(shape, generator=rng, dtype=torch.float64)
        found = lazy.combined(weights)
        torch.testing.assert_close(found, whole.combined(weights), rtol=1e-10, atol=1e-12)
    for method in aggregation.PrecisionWeighted(), aggregation.Bargain():
        close, wanted = method.aggregate(lazy), method.aggregate(whole)
        torch.testing.assert_close(close.direction, wanted.direction, rtol=1e-9, atol=1e-13)


@pytest.mark.usefixtures("everything_large")
def test_moments_are_there_for_who_asks(rng: torch.Generator) -> None:
    head, posterior, features, targets = _case(rng, "binary", holes=True)
    whole = gradients.distribution(head, posterior, features, targets)
    lazy = gradients.distribution(head, posterior, features, targets, average=True)
    assert "mean" not in vars(lazy)
    for name in ("mean", "variance", "covariance_matrix"):
        assert torch.equal(getattr(lazy, name), getattr(whole, name))
    assert torch.equal(lazy.moment_error.variance, whole.moment_error.variance)
    draws = (one.sample((2,), generator=torch.Generator().manual_seed(0)) for one in (lazy, whole))
    assert torch.equal(*draws)
    made = replace(lazy, groups={"a": slice(0, 3)})
    assert not isinstance(made, Lazy)
    assert torch.equal(made.mean, whole.mean)
    assert torch.equal(lazy.examples(slice(2, 4)).variance, whole.examples(slice(2, 4)).variance)


@pytest.mark.usefixtures("everything_large")
def test_joined_with_others(rng: torch.Generator) -> None:
    some = _case(rng, "binary", holes=True)
    others = heads.Gaussian(5, 2).double()
    dense = gradients.distribution(
        others,
        DiagonalGaussian(torch.randn(2, 5, generator=rng).double(), torch.ones(2, 5).double()),
        some[2],
        torch.randn(7, 2, generator=rng).double(),
    )
    parts = {
        average: gradients.cat({"a": gradients.distribution(*some, average=average), "b": dense})
        for average in (False, True)
    }
    assert isinstance(parts[True], Joined)
    method = aggregation.PrecisionWeighted({"a": 0.5, "b": 0.3})
    found, wanted = (method.aggregate(parts[average]) for average in (True, False))
    assert "mean" not in vars(parts[True])
    torch.testing.assert_close(found.direction, wanted.direction, rtol=1e-9, atol=1e-13)
    assert torch.equal(parts[True].mean, parts[False].mean)


@pytest.mark.parametrize("rules", [aggregation.PrecisionWeighted(), aggregation.Mean()])
def test_a_step_with_many_tasks_is_that_of_all_moments(
    rng: torch.Generator, rules: aggregation.Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = torch.relu(torch.randn(16, 8, generator=rng)).double()
    targets = (torch.rand(16, 30, generator=rng) < 0.2).double()
    mask = torch.rand(16, 30, generator=rng) < 0.7
    head = heads.Bernoulli(8, 30).double()
    start = {name: value.clone() for name, value in head.state_dict().items()}
    found = []
    for most in (2**20, 0):
        monkeypatch.setattr(_samples, "CACHE", most)
        head.load_state_dict(start)
        mtl = ba.BayesAgg({"y": head}, rules, inference=inference.TaylorGGN("diag"))
        mtl.collect(features, {"y": (targets, mask)})
        mtl.update_prior()
        mtl.start_bayes()
        inputs = features.clone().requires_grad_()
        mtl.backward(inputs, {"y": (targets, mask)})
        assert mtl.info is not None
        found.append([inputs.grad, mtl.info.weights, mtl.info.effective_tasks])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-14)


@pytest.mark.usefixtures("everything_large")
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_gradients_at_the_weights_are_added_up_by_factors(
    rng: torch.Generator, kind: str, holes: bool
) -> None:
    head, _, features, targets = _case(rng, kind, holes)
    at_weights = gradients.PlugIn(at="weights")
    whole, lazy = (
        gradients.distribution(head, None, features, targets, estimator=at_weights, average=average)
        for average in (False, True)
    )
    assert isinstance(lazy, Certain)
    for shape in (3, 1, 1), (3, 1, 5), (3, 7, 1):
        weights = torch.rand(shape, generator=rng, dtype=torch.float64)
        found = lazy.combined(weights)
        torch.testing.assert_close(found, whole.combined(weights), rtol=1e-10, atol=1e-12)
    assert "mean" not in vars(lazy)
    assert torch.equal(lazy.mean, whole.mean)


def test_nothing_of_tasks_examples_and_features_is_made() -> None:
    from benchmarks.timing import peak_memory

    tasks, batch, size = 400, 64, 128
    torch.manual_seed(0)
    features = torch.relu(torch.randn(batch, size))
    targets = (torch.rand(batch, tasks) < 0.1).float()
    mtl = ba.BayesAgg({"y": heads.Bernoulli(size, tasks)}, inference=inference.TaylorGGN("diag"))
    mtl.collect(features, {"y": targets})
    mtl.update_prior()
    mtl.start_bayes()
    inputs = features.requires_grad_()
    peak = peak_memory(lambda: mtl.backward(inputs, {"y": targets}))
    assert peak < 4 * tasks * batch * size * 0.8  # bytes of one such tensor of floats: 13 MB
