"""Whether Markov chains have converged, and how much they are worth."""

from __future__ import annotations

import math
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
    middle = halves.flatten(0, 1).median(0).values
    folded = _rank_normalised((halves - middle).abs())
    rhat = torch.maximum(_gelman_rubin(ranked), _gelman_rubin(folded))
    ess: Tensor = stats.effective_sample_size(ranked, chain_dim=0, sample_dim=1)
    return Convergence(rhat, ess)


def _split(samples: Tensor) -> Tensor:
    half = samples.shape[1] // 2
    return torch.cat([samples[:, :half], samples[:, -half:]])


def _gelman_rubin(chains: Tensor) -> Tensor:
    found: Tensor = stats.gelman_rubin(chains, chain_dim=0, sample_dim=1)
    return found


def _rank_normalised(chains: Tensor) -> Tensor:
    """Normal scores Φ⁻¹((r − 3/8) / (S + 1/4)) of the ranks among all chains."""
    flat = chains.flatten(0, 1)
    rank = flat.argsort(0).argsort(0) + 1
    level = (rank - 0.375) / (len(flat) + 0.25)
    scores: Tensor = math.sqrt(2) * torch.special.erfinv(2 * level.double() - 1)
    return scores.reshape(chains.shape)
