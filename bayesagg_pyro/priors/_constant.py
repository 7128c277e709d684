"""The same prior at every step, as in single-batch inference."""

from __future__ import annotations

from bayesagg_pyro.inference import Storage
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors._data import Base, DataPolicy, Variance


class Constant(DataPolicy):
    """The base prior at every step: N(0, variance · I), or what `base` makes.

    A step knows nothing but its batch, so posteriors are wide: the reference that shows what a
    prior from data does. What training shows is collected still, since Gaussian heads predict with
    the posterior of all data, which `update_prior` makes.

    Args:
        variance: γ, in squared units of the weights, one number or one per task. Where it is
            learned, see `DataPolicy`, steps have the base prior as the last update scaled it.
        base: makes another prior, see `DataPolicy`.
        temperature: divides the data's log-likelihood in the posterior that predicts.
        storage: how a scheme without sums keeps examples.

    Raises:
        SettingError: if variance or temperature is not positive and finite.
    """

    def __init__(
        self,
        variance: Variance = 1.0,
        *,
        base: Base | None = None,
        temperature: float = 1.0,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(variance, base=base, temperature=temperature, storage=storage)

    _renews = False
    held = ("prior", "_posterior")

    def begin(self) -> None:
        super().begin()
        self.prior = self._base
        self._posterior: Posterior | None = None

    @property
    def posterior(self) -> Posterior | None:
        return self._posterior

    def accept(self, prior: Posterior) -> None:
        """Keep the posterior for predictions; the prior has at most another variance."""
        self._adopt(prior)
        self.prior = self._chosen_base
        self._posterior = prior
        self._statistics = self._cleared(self._statistics)
