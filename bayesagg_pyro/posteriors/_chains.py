"""What Markov chains are worth: rank-normalised R-hat and effective sample size.

Vehtari et al. (2021), https://doi.org/10.1214/20-BA1221.
"""

from __future__ import annotations

import math

import torch
from pyro.ops import stats
from torch import Tensor


def r_hat(chains: Tensor) -> Tensor:
    """Rank-normalised split R-hat: the larger of that of draws and of folded draws.

    The folded ones differ where chains differ in spread alone.

    Args:
        chains: [chains, draws of at least 4, ...].

    Returns:
        [...].
    """
    halves = _split(chains.detach().double())
    folded = (halves - _median(halves.flatten(0, 1))).abs()
    both = (_rank_normalised(x) for x in (halves, folded))
    return torch.maximum(*(stats.gelman_rubin(x, chain_dim=0, sample_dim=1) for x in both))


def effective_size(chains: Tensor) -> Tensor:
    """Bulk effective sample size over all chains, at most S log10 S of S draws, [...].

    By Stan's rule: autocorrelations of pairs of lags are summed up to the first negative pair, made
    monotone (Geyer, 1992, https://doi.org/10.1214/ss/1177011137). Chains whose draws alternate have
    negative ones, whose sum can pass any bound or change its sign; the cap is that of Stan, too.

    Args:
        chains: [chains, draws of at least 4, ...].
    """
    halves = _rank_normalised(_split(chains.detach().double()))
    n = halves.shape[1]
    lag = torch.arange(n, device=halves.device).reshape(-1, *[1] * (halves.ndim - 2))
    covariance = stats.autocovariance(halves, dim=1).mean(0) * (n - lag) / n  # of n, as at lag 0
    within = covariance[0] * n / (n - 1)
    correlation = 1 - (within - covariance) / (covariance[0] + halves.mean(1).var(0))
    correlation = torch.cat([torch.ones_like(correlation[:1]), correlation[1:]])
    pairs = correlation[: 2 * max((n - 3) // 2, 1)].unflatten(0, (-1, 2)).sum(1)
    kept = (pairs > 0).long().cumprod(0)
    after = torch.cat([correlation, 0 * pairs[:1]]).gather(0, 2 * kept.sum(0, keepdim=True))[0]
    time = 2 * (pairs.cummin(0).values * kept).sum(0) - 1 + after.clamp(min=0)
    count = halves.shape[0] * n
    found: Tensor = count / time.clamp(min=1 / math.log10(count))
    return found


def _split(samples: Tensor) -> Tensor:
    half = samples.shape[1] // 2
    return torch.cat([samples[:, :half], samples[:, -half:]])


def _median(draws: Tensor) -> Tensor:
    """Of [S, ...], the mean of the two in the middle where S is even; torch takes the lower one."""
    return (draws.median(0).values - (-draws).median(0).values) / 2


def _rank_normalised(chains: Tensor) -> Tensor:
    """Normal scores Φ⁻¹((r − 3/8) / (S + 1/4)) of the ranks among all chains.

    Draws that are equal, as after a rejected step, share the mean of their ranks.
    """
    flat = chains.flatten(0, 1).movedim(0, -1).contiguous()  # [tasks, P, S]
    ordered = flat.sort().values
    below, upto = (torch.searchsorted(ordered, flat, right=right) for right in (False, True))
    rank = (below + upto + 1).double() / 2
    scores: Tensor = torch.special.ndtri((rank - 0.375) / (flat.shape[-1] + 0.25))
    return scores.movedim(-1, 0).reshape(chains.shape)
