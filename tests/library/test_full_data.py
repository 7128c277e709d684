"""Sums over an epoch give the posterior of all its examples at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import case, close, posterior

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, priors
from bayesagg_pyro.targets import Targets


def tracked(head: heads.Gaussian, variance: float = 1.0) -> priors.Policy:
    return priors.FullData(variance).start(head, inference.Conjugate())


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    variance=st.sampled_from([5e-3, 1.0, 40.0]),
    noise=st.sampled_from([1.0, 0.3, [0.3, 1.0, 2.5]]),
    bias=st.booleans(),
    masked=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_sums_equal_inference_on_the_whole_epoch(sizes, variance, noise, bias, masked, seed):
    """However the epoch is cut, and whichever of its batches have holes."""
    rng = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    c = case(rng, n, noise=noise, bias=bias)
    observed = torch.ones(n, 3, dtype=torch.bool)
    tracker = tracked(c.head, variance)
    start = 0
    for size, holes in zip(sizes, masked, strict=False):
        rows = slice(start, start + size)
        start += size
        if holes:
            observed[rows] = torch.rand(size, 3, generator=rng) < 0.5
        mask = observed[rows] if holes else None
        values = c.targets[rows] if mask is None else c.targets[rows].where(mask, 0.0)
        tracker.collect(c.features[rows], Targets(values, mask))
    tracker.update()
    prior = priors.isotropic(c.head, variance)
    direct = inference.Conjugate().infer(c.head, c.features, (c.targets, observed), prior)
    got = tracker.prior
    assert got is not None
    close(got.mean, direct.mean)
    close(got.covariance_matrix.expand(3, -1, -1), direct.covariance_matrix)
    size = 4 + bias
    mean, covariance = posterior(
        c.design,
        c.targets,
        c.noise,
        torch.zeros(3, size).double(),
        variance * torch.eye(size).double().expand(3, -1, -1),
        observed,
    )
    close(got.mean, mean)
    close(got.covariance_matrix.expand(3, -1, -1), covariance)


def test_scheme_conditions_sums_on_any_prior(rng) -> None:
    c = case(rng, noise=[0.3, 1.0, 2.0], bias=True)
    scheme = inference.Conjugate()
    sums = scheme.statistics(c.head, inference.Storage())
    assert not sums
    for rows in (slice(0, 5), slice(5, 12)):
        sums.add(c.features[rows], Targets(c.targets[rows]))
    assert sums
    close(sums.count, torch.full((3,), 12.0).double())
    got = sums.posterior(c.prior)
    direct = scheme.infer(c.head, c.features, c.targets, c.prior)
    close(got.mean, direct.mean)
    close(got.covariance_matrix, direct.covariance_matrix)


def test_memory_does_not_grow_with_the_epoch(rng) -> None:
    c = case(rng, n=50, d=6)
    tracker = tracked(c.head)

    def size() -> int:
        return sum(v.numel() for name, v in tracker.state_dict().items() if "statistics" in name)

    tracker.collect(c.features, Targets(c.targets))
    first = size()
    for _ in range(5):
        tracker.collect(c.features, Targets(c.targets))
    assert size() == first > 0
    assert first <= 6 * 6 + 3 * 6 + 3 * 3 + 1  # one HᵀH for all tasks, HᵀY, Σy² and counts


def test_float32_features_are_summed_in_float64(rng) -> None:
    """1e5 examples of a feature with a large mean: float32 sums would be off by far more."""
    c = case(rng, n=20_000, d=2, tasks=1, dtype=torch.float32)
    c.features += 30
    tracker = tracked(c.head)
    for rows in c.features.split(97):
        tracker.collect(rows, Targets(c.targets[: len(rows)]))
    y = torch.cat([c.targets[: len(rows)] for rows in c.features.split(97)])
    tracker.update()
    h = c.features.double()
    close(tracker.prior.precision_matrix[0], torch.eye(2).double() + h.T @ h, 1e-12)
    expected = torch.linalg.solve(torch.eye(2).double() + h.T @ h, h.T @ y.double())
    close(tracker.prior.mean[0], expected[:, 0], 1e-9)


def test_update_clears_the_sums(rng) -> None:
    c = case(rng)
    tracker = tracked(c.head)
    assert tracker.prior is None
    assert not tracker.collected
    for half in (slice(0, 6), slice(6, 12)):
        tracker.collect(c.features[half], Targets(c.targets[half]))
        assert tracker.collected
        tracker.update()
        assert not tracker.collected
        alone = inference.Conjugate().infer(
            c.head, c.features[half], c.targets[half], priors.isotropic(c.head, 1.0)
        )
        close(tracker.prior.mean, alone.mean)
    last = tracker.prior
    with pytest.raises(errors.StateError, match="no data has been collected"):
        tracker.update()
    assert tracker.prior is last


def test_the_engine_collects_what_backward_sees(rng) -> None:
    """Features through `backward`, batch by batch, equal the head's inference on all of them."""
    c = case(rng, n=30)
    mtl = ba.BayesAgg({"a": c.head}, prior=priors.FullData(variance=0.2))
    for rows in torch.randperm(30, generator=rng).split(7):
        mtl.backward(c.features[rows].requires_grad_(), {"a": c.targets[rows]})
    mtl.update_prior()
    prior = priors.isotropic(c.head, 0.2)
    direct = inference.Conjugate().infer(c.head, c.features, c.targets, prior)
    close(mtl.priors()["a"].mean, direct.mean)
    close(mtl.priors()["a"].covariance_matrix, direct.covariance_matrix)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_a_policys_variance_must_be_positive(variance) -> None:
    with pytest.raises(errors.SettingError, match="variance"):
        priors.FullData(variance)


def test_kept_examples_keep_their_digits_beside_coarser_ones(rng) -> None:
    """A batch under autocast, or with bfloat16 targets, comes first."""
    head = heads.StudentT(2)
    sums = inference.TaylorGGN().statistics(head, inference.Storage(capacity=10))
    h = torch.randn(6, 2, generator=rng, dtype=torch.float64)
    y = 1e5 + torch.randn(6, 1, generator=rng, dtype=torch.float64)
    sums.add(h[:3].half(), Targets(torch.ones(3, 1, dtype=torch.bfloat16), None))
    sums.add(h[3:], Targets(y[3:], None))
    features, targets = sums.all()
    assert torch.equal(features[3:], h[3:])
    assert torch.equal(targets.values[3:], y[3:])
    assert torch.equal(features[:3], h[:3].half().double())
