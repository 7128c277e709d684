"""Whether Markov chains have converged, and how much they are worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pyro.ops import stats
from torch import Tensor

from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors import Empirical

__all__ = ["Convergence", "convergence"]


@dataclass(frozen=True)
class Convergence:
    """R-hat and effective sample size of every weight.

    Attributes:
        rhat: rank-normalised split R-hat, the larger of that of the draws and of the folded draws
            (which differ in spread), [tasks, P].
        ess: bulk effective sample size over all chains, [tasks, P].
    """

    rhat: Tensor
    ess: Tensor

    def checks(self) -> list[Check]:
        """The worst weight of each."""
        axes = ("task", "weight")
        return [judge("rhat", self.rhat, axes), judge("ess", self.ess, axes)]


def convergence(samples: Tensor | Empirical) -> Convergence:
    """Convergence of chains (Vehtari et al., 2021).

    Args:
        samples: [chains, draws, tasks, P], or a posterior from NUTS or HMC, which knows its chains.

    Raises:
        ShapeError: for other dimensions, or fewer than 4 draws per chain.
    """
    if isinstance(samples, Empirical):
        chains = int(getattr(samples, "chains", 1))
        held: Tensor = samples.samples.unflatten(0, (chains, -1))
    else:
        held = samples
    if held.ndim != 4 or held.shape[1] < 4:
        raise ShapeError(
            f"samples must be [chains, draws of at least 4, tasks, weights], not {list(held.shape)}"
        )
    halves = _split(held.detach().double())
    ranked = _rank_normalised(halves)
    folded = _rank_normalised((halves - _median(halves.flatten(0, 1))).abs())
    rhat = torch.maximum(_gelman_rubin(ranked), _gelman_rubin(folded))
    ess: Tensor = stats.effective_sample_size(ranked, chain_dim=0, sample_dim=1)
    return Convergence(rhat, ess)


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
