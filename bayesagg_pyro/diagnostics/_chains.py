"""Whether Markov chains have converged, and their effective number of samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors import Empirical
from bayesagg_pyro.posteriors._chains import effective_size, r_hat

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
    """Convergence of chains (Vehtari et al., 2021, https://arxiv.org/abs/1903.08008).

    Args:
        samples: [chains, draws, tasks, P], or a posterior from NUTS or HMC, which knows its chains.

    Raises:
        ShapeError: for other dimensions, or fewer than 4 draws per chain.
    """
    held = samples.by_chain if isinstance(samples, Empirical) else samples
    if held.ndim != 4 or held.shape[1] < 4:
        raise ShapeError(
            f"samples must be [chains, draws of at least 4, tasks, weights], not {list(held.shape)}"
        )
    return Convergence(r_hat(held), effective_size(held))
