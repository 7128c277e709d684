"""The paper's prior: the posterior of the whole last epoch ("Prior selection", section 4.1)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Keep, Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.priors._distributions import isotropic
from bayesagg_pyro.priors._policy import Policy, Tracker
from bayesagg_pyro.targets import Targets

__all__ = ["FullData"]


class FullData(Policy):
    """Posterior given all features seen during an epoch, on an isotropic prior N(0, variance · I).

    The features are those of the passing network, so the prior lags up to an epoch behind, and it
    holds the batch that it will be combined with; both are the paper's choice.

    Args:
        variance: γ, in squared units of the weights. It is a precision of 1/γ against about N/τ²
            from the data: 1e-3 (a precision of 1,000) is weak next to 100,000 examples and strong
            next to 5,000.
        keep: how a scheme without sufficient statistics (TaylorGGN, Laplace) keeps the epoch's
            examples: as they are (the default), in half precision, in host memory, or as
            streamed sums. Conjugate keeps sums whatever is said here.

    Raises:
        SettingError: if the variance is not positive and finite.
    """

    def __init__(self, variance: float = 1.0, *, keep: Keep | None = None) -> None:
        if not (variance > 0 and math.isfinite(variance)):
            raise SettingError(f"the prior variance must be positive and finite, not {variance}")
        self.variance = variance
        self.keep = keep or Keep()

    def start(self, head: Head, scheme: Scheme) -> Tracker:
        """Begin with no prior: the first comes from the first `update_prior`."""
        return _FullDataTracker(head, scheme, self)

    def __repr__(self) -> str:
        return f"FullData(variance={self.variance})"


class _FullDataTracker(Tracker):
    def __init__(self, head: Head, scheme: Scheme, policy: FullData) -> None:
        self._head = head
        self._scheme = scheme
        self._policy = policy
        self._statistics = scheme.statistics(head, policy.keep)

    def collect(self, features: Tensor, targets: Targets, valid: Tensor | None = None) -> None:
        self._statistics.add(features, targets, valid)

    @property
    def collected(self) -> bool:
        return bool(self._statistics)

    def propose(self) -> Posterior:
        if not self.collected:
            raise StateError(
                f"head {self._head.site!r}: no data has been collected since the last "
                "update_prior(); only backward() in train mode collects"
            )
        prior = isotropic(self._head, self._policy.variance)
        return self._scheme.infer_from(self._head, self._statistics, prior)

    def accept(self, prior: Posterior) -> None:
        self.prior = prior
        self._statistics = self._scheme.statistics(self._head, self._policy.keep)

    def to(self, device: torch.device) -> None:
        self._statistics.to(device)
        if self.prior is not None:
            self.prior = self.prior.to(device=device)

    def state_dict(self) -> dict[str, Any]:
        prior = None if self.prior is None else self.prior.state_dict()
        return {"prior": prior, "statistics": self._statistics.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self._head.weight.device
        saved = state["prior"]
        prior = None if saved is None else Posterior.from_state_dict(saved, device)
        if prior is not None:
            self._head.check_weights(prior, "saved prior")
        self.prior = prior
        self._statistics.load_state_dict(state["statistics"])
