"""The Gaussian of few samples: how far correlations are shrunk, against the iteration it solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayesagg_pyro import errors, posteriors

F64 = torch.float64


def samples(rng: torch.Generator, count: int, size: int, tasks: int = 2) -> torch.Tensor:
    """Correlated, of other scales and centres in each task and weight."""
    loads = torch.randn(tasks, size, generator=rng, dtype=F64).sign()
    scale = torch.logspace(-3, 3, size, dtype=F64)
    common = torch.randn(count, tasks, 1, generator=rng, dtype=F64)
    own = torch.randn(count, tasks, size, generator=rng, dtype=F64)
    return (2 * common * loads + own) * scale + 10 * scale


def oracle_approximating(correlation: np.ndarray, degrees: int) -> float:
    """Iterates equations (21) and (22) of Chen et al. (2010) to their limit, from no shrinkage."""
    size, share = len(correlation), 0.0
    target = np.trace(correlation) / size * np.eye(size)
    for _ in range(20_000):
        shrunk = (1 - share) * correlation + share * target
        product, square = np.trace(shrunk @ correlation), np.trace(shrunk) ** 2
        above = (1 - 2 / size) * product + square
        below = (degrees + 1 - 2 / size) * product + (1 - degrees / size) * square
        share, before = min(above / below, 1.0), share
        if abs(share - before) < 1e-15:
            break
    return share


def share_of(found: posteriors.Gaussian, given: torch.Tensor) -> tuple[list[float], float]:
    """How far each task's correlations went to 0, and how much they differ in that."""
    shares, spread = [], 0.0
    for task in range(given.shape[1]):
        before = torch.corrcoef(given[:, task].T)
        covariance = found.covariance_matrix[task]
        scale = covariance.diagonal().sqrt()
        after = covariance / scale / scale[:, None]
        off = ~torch.eye(len(before), dtype=torch.bool)
        kept = after[off] / before[off]
        shares.append(float(1 - kept.mean()))
        spread = max(spread, float(kept.max() - kept.min()))
    return shares, spread


@pytest.mark.parametrize(
    ("count", "size"), [(3, 3), (4, 8), (6, 3), (10, 4), (40, 5), (400, 6), (8, 30), (20, 2)]
)
def test_the_share_is_the_limit_of_the_published_iteration(rng, count, size) -> None:
    given = samples(rng, count, size)
    found = posteriors.Empirical(given).to_gaussian()
    expected = [
        oracle_approximating(np.corrcoef(given[:, task].numpy().T), count - 1) for task in range(2)
    ]
    shares, spread = share_of(found, given)
    assert shares == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert spread < 1e-6  # all correlations by the same factor
    torch.testing.assert_close(found.mean, given.mean(0))
    torch.testing.assert_close(found.variance, given.var(0))  # and no variance at all
    assert 0 < min(shares) < 1


def test_the_share_does_not_depend_on_units_or_centres(rng) -> None:
    given = samples(rng, 7, 4)
    units = torch.tensor([1e4, 1.0, -1e-4, 30.0], dtype=F64)
    moved = given * units + torch.tensor([5.0, -3.0, 0.0, 1e3], dtype=F64)
    one, other = (posteriors.Empirical(each).to_gaussian() for each in (given, moved))
    torch.testing.assert_close(
        other.covariance_matrix, one.covariance_matrix * units * units[:, None], rtol=1e-6, atol=0
    )


def test_independent_weights_are_shrunk_all_the_way_at_most() -> None:
    """Without any correlation in the sample the formula's share is infinite."""
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 3)
    found = posteriors.Empirical(corners[:, None, :]).to_gaussian()
    torch.testing.assert_close(found.covariance_matrix[0], 8 / 7 * torch.eye(3, dtype=F64))


def test_a_single_weight_keeps_its_variance(rng) -> None:
    given = torch.randn(5, 2, 1, generator=rng, dtype=F64)
    found = posteriors.Empirical(given).to_gaussian()
    torch.testing.assert_close(found.covariance_matrix[..., 0], given.var(0))


@pytest.mark.parametrize(("task", "weight"), [(0, 0), (1, 2), (1, 0)])
def test_a_weight_that_never_moves_is_named(rng, task, weight) -> None:
    given = samples(rng, 6, 3)
    given[:, task, weight] = 4.0
    with pytest.raises(errors.NumericalError, match=f"weight {weight} of task {task} .* all 6"):
        posteriors.Empirical(given).to_gaussian()
