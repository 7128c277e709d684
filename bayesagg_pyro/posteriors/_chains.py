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
    return torch.maximum(*(_gelman_rubin(_rank_normalised(x)) for x in (halves, folded)))


def effective_size(chains: Tensor) -> Tensor:
    """Bulk effective sample size over all chains, at most S log10 S of S draws, [...].

    Chains whose draws alternate have negative autocorrelations, whose estimated sum can pass any
    bound or change its sign; the cap is that of Stan.
    """
    halves = _split(chains.detach().double())
    found: Tensor = stats.effective_sample_size(_rank_normalised(halves), chain_dim=0, sample_dim=1)
    count = chains.shape[0] * chains.shape[1]
    most = count * math.log10(count)
    return torch.where((found <= 0) | (found > most), most, found)


def _split(samples: Tensor) -> Tensor:
    half = samples.shape[1] // 2
    return torch.cat([samples[:, :half], samples[:, -half:]])


def _gelman_rubin(chains: Tensor) -> Tensor:
    found: Tensor = stats.gelman_rubin(chains, chain_dim=0, sample_dim=1)
    return found


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
