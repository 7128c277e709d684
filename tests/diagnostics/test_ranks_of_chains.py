"""R-hat to the last digit: ranks, ties, folding and splitting, against ArviZ and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesagg_pyro import diagnostics, errors, posteriors

arviz: Any = pytest.importorskip("arviz")


def draws(rng: torch.Generator, chains: int, count: int) -> Tensor:
    """Skewed, of another place and spread in each chain."""
    found = torch.randn(chains, count, 2, 3, generator=rng, dtype=torch.float64).exp()
    place, spread = torch.rand(2, chains, 1, 2, 3, generator=rng, dtype=torch.float64)
    return found * (1 + spread) + place


def repeated(chains: Tensor) -> Tensor:
    """As a sampler leaves them that rejects every other step."""
    return chains[:, torch.arange(chains.shape[1]) // 2 * 2]


@pytest.mark.parametrize(("chains", "count"), [(2, 6), (2, 5), (3, 8), (4, 9), (2, 101), (5, 40)])
@pytest.mark.parametrize("held", [False, True])
def test_rhat_is_arvizs_to_the_last_digit(rng, chains, count, held) -> None:
    samples = draws(rng, chains, count)
    if held:
        samples = repeated(samples)
    found = diagnostics.convergence(samples).rhat
    data = arviz.convert_to_dataset({"w": samples.numpy()})
    np.testing.assert_allclose(found.numpy(), arviz.rhat(data)["w"].values, rtol=1e-10)


@pytest.mark.parametrize("count", [24, 101, 250])
@pytest.mark.parametrize("kind", ["independent", "slow", "alternating", "drifting", "apart"])
def test_ess_is_arvizs(rng, kind, count) -> None:
    noise = torch.randn(4, count, 1, 3, generator=rng, dtype=torch.float64)
    samples, along = noise.clone(), {"slow": 0.9, "alternating": -0.6}.get(kind, 0.0)
    for k in range(1, count):
        samples[:, k] += along * samples[:, k - 1]
    if kind == "drifting":
        samples = noise.cumsum(1) * 0.05 + noise.flip(1)
    if kind == "apart":
        samples[0] += 3
    found = diagnostics.convergence(samples).ess
    data = arviz.convert_to_dataset({"w": samples.numpy()})
    np.testing.assert_allclose(found.numpy(), arviz.ess(data)["w"].values, rtol=1e-9)


def test_rhat_by_hand(rng) -> None:
    """Two chains of 6: halves, ranks of all 12, scores of Blom, and the larger of two ratios."""
    samples = draws(rng, 2, 6)[..., :1, :1]
    halves = samples[..., 0, 0].numpy().reshape(4, 3)

    def ratio(values: np.ndarray) -> float:
        rank = stats.rankdata(values.ravel(), method="average")
        z = stats.norm.ppf((rank - 3 / 8) / (12 + 1 / 4)).reshape(4, 3)
        within, between = z.var(1, ddof=1).mean(), z.mean(1).var(ddof=1)
        return float(np.sqrt((2 / 3 * within + between) / within))

    expected = max(ratio(halves), ratio(np.abs(halves - np.median(halves))))
    assert float(diagnostics.convergence(samples).rhat) == pytest.approx(expected, rel=1e-12)


def test_a_posterior_of_draws_knows_its_chains(rng) -> None:
    chains = draws(rng, 3, 8)
    found = diagnostics.convergence(posteriors.Empirical(chains.flatten(0, 1), chains=3))
    expected = diagnostics.convergence(chains)
    assert torch.equal(found.rhat, expected.rhat)
    assert torch.equal(found.ess, expected.ess)
    one = diagnostics.convergence(posteriors.Empirical(chains.flatten(0, 1)))
    assert torch.equal(one.rhat, diagnostics.convergence(chains.reshape(1, 24, 2, 3)).rhat)


def test_four_draws_of_any_kind_are_enough_and_three_are_not(rng) -> None:
    chains = draws(rng, 2, 4).float().requires_grad_()
    found = diagnostics.convergence(chains).rhat
    assert found.dtype == torch.float64
    assert not found.requires_grad
    torch.testing.assert_close(found, diagnostics.convergence(chains.detach().double()).rhat)
    for wrong in (chains[:, :3], chains[0], chains[None]):
        with pytest.raises(errors.ShapeError, match="draws of at least 4"):
            diagnostics.convergence(wrong)
    normal = posteriors.Gaussian(torch.zeros(1, 2), torch.eye(2)[None])
    with pytest.raises(errors.DtypeError, match="not Gaussian"):
        diagnostics.convergence(normal)  # type: ignore[arg-type]
