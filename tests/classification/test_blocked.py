"""Many tasks of one large block each: the posterior in blocks is the dense one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, linalg
from bayesagg_pyro.inference import _curvature
from bayesagg_pyro.posteriors import BlockedGaussian, Gaussian, Posterior


def pair(rng: torch.Generator, size: int, tasks: int = 3, scale: float = 1.0):
    root = torch.randn(tasks, size, size + 2, generator=rng, dtype=torch.float64)
    matrix = scale * (root @ root.mT + torch.eye(size, dtype=torch.float64))
    mean = torch.randn(tasks, size, generator=rng, dtype=torch.float64)
    return BlockedGaussian(mean, *linalg.split_rows(matrix)), Gaussian(mean, matrix)


@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_everything_equals_the_dense_gaussian(rng, size) -> None:
    blocked, dense = pair(rng, size)
    w = torch.randn(3, size, generator=rng, dtype=torch.float64)
    h = torch.randn(5, size, generator=rng, dtype=torch.float64)
    close = {"rtol": 1e-10, "atol": 1e-12}
    for name in ("mean", "variance", "precision_matrix", "precision_tril", "inverse_tril"):
        torch.testing.assert_close(getattr(blocked, name), getattr(dense, name), **close)
    for name in ("covariance_matrix", "scale_tril"):
        torch.testing.assert_close(getattr(blocked, name), getattr(dense, name), **close)
    torch.testing.assert_close(blocked.solve(w), dense.solve(w), **close)
    torch.testing.assert_close(blocked.precision_times(w), dense.precision_times(w), **close)
    torch.testing.assert_close(blocked.log_prob(w), dense.log_prob(w), **close)
    torch.testing.assert_close(blocked.info.condition, dense.info.condition, **close)
    torch.testing.assert_close(blocked.info.jitter, dense.info.jitter)
    for ours, theirs in zip(blocked.project(h), dense.project(h), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    half = blocked.project(h, torch.float32)
    assert half.cross.dtype == torch.float32
    assert half.variance.dtype == torch.float64
    torch.testing.assert_close(
        blocked.rsample((2,), generator=torch.Generator().manual_seed(1)),
        dense.rsample((2,), generator=torch.Generator().manual_seed(1)),
        **close,
    )
    for ours, theirs in zip(blocked.rows, dense.rows, strict=True):
        torch.testing.assert_close(ours, theirs)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(-10, 10), st.integers(0, 2**31))
def test_units_do_not_matter(size, exponent, seed) -> None:
    blocked, dense = pair(torch.Generator().manual_seed(seed), size, scale=10.0**exponent)
    w = torch.ones(3, size, dtype=torch.float64)
    torch.testing.assert_close(blocked.solve(w), dense.solve(w), rtol=1e-8, atol=0)
    torch.testing.assert_close(blocked.variance, dense.variance, rtol=1e-8, atol=0)


def test_it_is_kept_moved_and_cut_like_any_posterior(rng) -> None:
    blocked, dense = pair(rng, 7)
    blocked.replace(outputs_per_task=1)
    again = Posterior.from_state_dict(blocked.state_dict())
    assert isinstance(again, BlockedGaussian)
    assert torch.equal(again.variance, blocked.variance)
    part = blocked.part(slice(1, 3))
    torch.testing.assert_close(part.variance, dense.variance[1:])
    single = blocked.to(dtype=torch.float32)
    assert single.variance.dtype == torch.float32
    plain = blocked.to_gaussian()
    assert type(plain) is Gaussian
    torch.testing.assert_close(plain.precision_matrix, dense.precision_matrix)
    other, _ = pair(rng, 7)
    assert not torch.equal(blocked.covariance_matrix, other.covariance_matrix)
    blocked.copy_(other)
    assert torch.equal(blocked.covariance_matrix, other.covariance_matrix)
    assert torch.equal(blocked.solve(blocked.mean), other.solve(other.mean))
    moved = blocked.with_mean(torch.zeros_like(blocked.mean))
    assert (moved.mean == 0).all()
    assert torch.equal(moved.variance, blocked.variance)


def test_a_precision_that_is_not_definite_is_refused() -> None:
    matrix = torch.eye(6, dtype=torch.float64).repeat(2, 1, 1)
    for bad in (0, 5):  # in either block
        broken = matrix.clone()
        broken[1, bad, bad] = -1.0
        assert linalg.inverse_factor_rows(*linalg.split_rows(broken)) is None
        with pytest.raises(errors.NumericalError, match=r"posteriors\.Gaussian"):
            BlockedGaussian(torch.zeros(2, 6, dtype=torch.float64), *linalg.split_rows(broken))


def step(rng: torch.Generator, examples: int = 40, size: int = 100, tasks: int = 4):
    head = heads.Bernoulli(size, tasks)
    h = torch.randn(examples, size, generator=rng)
    y = (torch.rand(examples, tasks, generator=rng) < 0.3).float()
    root = torch.randn(tasks, size + 1, size + 1, generator=rng, dtype=torch.float64)
    prior = Gaussian(
        torch.randn(tasks, size + 1, generator=rng, dtype=torch.float64) / 10,
        root @ root.mT / size + torch.eye(size + 1, dtype=torch.float64),
    )
    return head, h, y, prior


def test_a_step_takes_blocks_and_they_change_nothing(rng, monkeypatch) -> None:
    head, h, y, prior = step(rng)
    blocked = inference.TaylorGGN().infer(head, h, y, prior)
    assert isinstance(blocked, BlockedGaussian)
    monkeypatch.setattr(_curvature, "_BLOCKED", 10**6)
    dense = inference.TaylorGGN().infer(head, h, y, prior)
    assert type(dense) is Gaussian
    for name in ("mean", "variance", "precision_matrix"):
        torch.testing.assert_close(getattr(blocked, name), getattr(dense, name), rtol=1e-9, atol=0)
    for name in ("newton_decrement", "gain_ratio"):
        torch.testing.assert_close(
            getattr(blocked.info, name), getattr(dense.info, name), rtol=1e-8, atol=1e-10
        )


def test_where_blocks_fail_jitter_is_tried_and_reported(rng) -> None:
    head, h, y, prior = step(rng)
    matrix = torch.zeros_like(prior.precision_matrix)
    matrix.diagonal(dim1=-2, dim2=-1).fill_(1e-300)
    vague = Gaussian(prior.mean, prior.precision_matrix, precision_tril=prior.precision_tril)
    vague._precision_matrix = matrix  # 40 examples cannot determine 101 weights
    posterior = inference.TaylorGGN().infer(head, h, y, vague)
    assert type(posterior) is Gaussian
    assert (posterior.info.jitter > 0).all()


def test_the_gain_ratio_compares_with_the_log_posterior_itself(rng) -> None:
    head, h, y, prior = step(rng)
    posterior = inference.TaylorGGN().infer(head, h, y, prior)
    point = head.point().detach().double()
    design = head.design_matrix(h)

    def potential(w: torch.Tensor) -> torch.Tensor:
        nll = head.negative_log_prob(design @ w.mT, y.double()).sum(0)
        return nll - prior.log_prob(w)

    actual = potential(point) - potential(posterior.mean)
    predicted = posterior.info.newton_decrement.square() / 2
    torch.testing.assert_close(posterior.info.gain_ratio, actual / predicted, rtol=1e-7, atol=0)


def test_training_and_restoring_with_blocks(rng) -> None:
    def engine() -> ba.BayesAgg:
        torch.manual_seed(0)
        return ba.BayesAgg(
            {"tags": heads.Bernoulli(100, 4)},
            prior=ba.priors.PreviousBatch(),
            warmup=False,
        )

    _, h, y, _ = step(rng)
    first = engine()
    first.collect(h, {"tags": y})
    first.update_prior()
    second = engine()
    second.load_state_dict(first.state_dict())
    updates = []
    for mtl in (first, second):
        leaf = h.clone().requires_grad_()
        mtl.backward(leaf, {"tags": y})
        updates.append(leaf.grad)
    assert torch.equal(*updates)


@pytest.mark.parametrize("given", ["upper_inverse", "lower_inverse"])
def test_one_half_of_the_inverse_is_not_enough(rng, given: str) -> None:
    blocked, _ = pair(rng, 5)
    half = {given: getattr(blocked, given)}
    again = BlockedGaussian(blocked.mean, blocked.upper, blocked.lower, **half)
    assert torch.equal(again.variance, blocked.variance)
