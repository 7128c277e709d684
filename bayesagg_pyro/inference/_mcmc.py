"""Markov chain Monte Carlo by Pyro: draws from the posterior itself, at a price."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pyro.infer import HMC as PyroHMC
from pyro.infer import MCMC
from pyro.infer import NUTS as PyroNUTS
from torch import Tensor

from bayesagg_pyro._modes import seeded
from bayesagg_pyro._settings import integers, positive, real
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.inference._iterative import Iterative
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._scheme import Refresh
from bayesagg_pyro.inference._whitening import DenseWhitening, Whiten, approximate, check_whiten
from bayesagg_pyro.posteriors import Empirical, Info, Posterior
from bayesagg_pyro.posteriors._chains import effective_size, r_hat

#: Draws per chain below which there is nothing to split and compare.
_FEWEST = 4
#: Leapfrog steps of the longest trajectory. A step size that adapts to nearly nothing would make a
#: trajectory of a given length endless; Stan's trees end at as many.
_MOST_STEPS = 1024


class _Sampler(Iterative):
    gives = Empirical

    def __init__(
        self,
        draws: int,
        warmup: int,
        chains: int,
        target_acceptance: float,
        whiten: Whiten,
        refresh: Refresh,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(refresh=refresh, generator=generator)
        integers(_FEWEST, draws=draws)
        integers(warmup=warmup, chains=chains)
        if not 0 < real(target_acceptance) < 1:
            raise SettingError(f"target_acceptance must lie in (0, 1), not {target_acceptance!r}")
        check_whiten(whiten)
        self.draws = draws
        self.warmup = warmup
        self.chains = chains
        self.target_acceptance = target_acceptance
        self.whiten = whiten

    @abstractmethod
    def _kernel(self, **settings: Any) -> Any:
        """Pyro's kernel for a potential."""

    def fit(
        self, joint: Joint, start: Posterior | None, generator: torch.Generator | None
    ) -> Empirical:
        """Chains one after another, each from a draw of Laplace's approximation."""
        mode = approximate(joint, start)
        whitening = DenseWhitening(mode if self.whiten == "laplace" else joint.prior)

        def potential(state: dict[str, Tensor]) -> Tensor:
            return -joint.log_prob(whitening.weights(state["z"])).sum()

        chains, divergences, acceptance = [], [], []
        with seeded(generator, joint.features.device):
            for _ in range(self.chains):
                kernel = self._kernel(
                    potential_fn=potential,
                    target_accept_prob=self.target_acceptance,
                    # Under "laplace" the masses are known: the whole warm-up is for the step size.
                    adapt_mass_matrix=self.whiten == "prior",
                )
                run = MCMC(
                    kernel,
                    num_samples=self.draws,
                    warmup_steps=self.warmup,
                    initial_params={"z": whitening.coordinates(mode.sample())},
                    disable_progbar=True,
                )
                run.run()
                chains.append(run.get_samples()["z"])
                found = run.diagnostics()
                divergences.append(len(found["divergences"]["chain 0"]))
                acceptance.append(float(found["acceptance rate"]["chain 0"]))
        z = torch.stack(chains)  # [chains, draws, tasks, P]
        weight = whitening.weights(z.detach())
        info = Info(
            whitening.centre.info.jitter,
            whitening.centre.info.condition,
            divergences=torch.tensor(divergences, device=z.device),
            acceptance=torch.tensor(acceptance, dtype=z.dtype, device=z.device),
            r_hat=r_hat(weight),
            ess=effective_size(weight),
        )
        return Empirical(weight.flatten(0, 1), self.chains, info=info)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(draws={self.draws}, warmup={self.warmup}, "
            f"chains={self.chains}, refresh={self.refresh!r})"
        )


class NUTS(_Sampler):
    """The no-U-turn sampler on whitened weights.

    Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246.

    All tasks of the head run in one chain; they are independent, so its trajectory is theirs side
    by side. Look at `posterior.info`: R-hat above 1.01, few effective samples or any divergence
    say that the draws are not yet the posterior's.

    Args:
        draws: kept from each chain.
        warmup: steps before that, which adapt the step size (and, for whiten="prior", a diagonal
            mass matrix).
        chains: run one after another.
        target_acceptance: of the step size's adaptation.
        max_tree_depth: a trajectory has at most 2 to this power steps.
        whiten: coordinates of "laplace" (the mode and its curvature) or of the "prior". Chains
            start from draws of Laplace's approximation either way.
        refresh: see `Scheme.refresh`; "epoch" by default, since a run takes seconds.
        generator: see `Iterative`. A run repeats to the bit from the same state of it.

    Raises:
        SettingError: for arguments outside their range.
    """

    def __init__(
        self,
        draws: int = 500,
        *,
        warmup: int = 200,
        chains: int = 2,
        target_acceptance: float = 0.8,
        max_tree_depth: int = 8,
        whiten: Whiten = "laplace",
        refresh: Refresh = "epoch",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(draws, warmup, chains, target_acceptance, whiten, refresh, generator)
        integers(max_tree_depth=max_tree_depth)
        self.max_tree_depth = max_tree_depth

    def _kernel(self, **settings: Any) -> Any:
        return PyroNUTS(max_tree_depth=self.max_tree_depth, **settings)


class HMC(_Sampler):
    """Hamiltonian Monte Carlo on whitened weights.

    The number of leapfrog steps is drawn anew for every trajectory, within half to one and a half
    times the mean: with one length for all, directions whose period it divides never move on
    (Neal, 2011, section 5.4.2, https://arxiv.org/abs/1206.1901). On nearly Gaussian posteriors it
    gives more effective samples per gradient than NUTS. `posterior.info` reports as for `NUTS`.

    Args:
        draws: kept from each chain.
        warmup: steps before that, which adapt the step size.
        chains: run one after another.
        trajectory: mean length of a trajectory in whitened units, in which the period is 2π where
            the posterior is Gaussian; it ends after 1,024 steps, however small they are.
        target_acceptance: of the step size's adaptation.
        whiten: see `NUTS`.
        refresh: see `Scheme.refresh`.
        generator: see `Iterative`.

    Raises:
        SettingError: for arguments outside their range.
    """

    def __init__(
        self,
        draws: int = 500,
        *,
        warmup: int = 200,
        chains: int = 2,
        trajectory: float = 2.0,
        target_acceptance: float = 0.8,
        whiten: Whiten = "laplace",
        refresh: Refresh = "epoch",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(draws, warmup, chains, target_acceptance, whiten, refresh, generator)
        positive("trajectory", trajectory)
        self.trajectory = trajectory

    def _kernel(self, **settings: Any) -> Any:
        return _JitteredHMC(trajectory_length=self.trajectory, **settings)


class _JitteredHMC(PyroHMC):
    """Pyro's kernel, which reads `num_steps` once per trajectory."""

    @property
    def num_steps(self) -> int:
        length: float = self.trajectory_length * (0.5 + float(torch.rand(())))
        return max(1, min(_MOST_STEPS, round(length / float(self.step_size))))
