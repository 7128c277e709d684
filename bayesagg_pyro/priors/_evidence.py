"""A full-data posterior whose prior variance the data choose."""

from __future__ import annotations

import math
from typing import Literal

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import EvidenceMaximised, Keep, Scheme
from bayesagg_pyro.priors._data import Base, DataPolicy, DataTracker
from bayesagg_pyro.priors._policy import Tracker

__all__ = ["Evidence"]


class Evidence(DataPolicy):
    """`FullData` with the prior variance of highest marginal likelihood at every update.

    Heads made with `noise_scale="learned"` get their τ at the same time. What was chosen is in
    `mtl.priors()[name].info`: `prior_variance`, `noise_scale`, `log_evidence`. A temperature acts
    on the posterior only; the evidence is that of the data as they are. To choose variances from
    fresh or fading data, give the engine the scheme `inference.EvidenceMaximised(scheme)` with the
    policy `Fresh` or `Running`.

    Args:
        variance: "task" for one variance per task, "shared" for one for all.
        bounds: of the factor by which the base prior's covariance may be scaled.
        base: the prior whose covariance is scaled; N(0, I) if None.
        temperature: divides the data's log-likelihood in the posterior.
        leave_batch_out: whether a step's prior is freed of the step's own batch.
        in_place: write each new prior into the tensors of the last.
        keep: how a scheme without sums keeps examples; not streamed.

    Raises:
        SettingError: for another `variance` or impossible bounds; as `FullData` else.
    """

    def __init__(
        self,
        variance: Literal["task", "shared"] = "task",
        *,
        bounds: tuple[float, float] = (1e-8, 1e8),
        base: Base | None = None,
        temperature: float = 1.0,
        leave_batch_out: bool = False,
        in_place: bool = False,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(
            1.0,
            base=base,
            temperature=temperature,
            leave_batch_out=leave_batch_out,
            in_place=in_place,
            keep=keep,
        )
        if variance not in ("task", "shared"):
            raise SettingError(f'variance must be "task" or "shared", not {variance!r}')
        if not 0 < bounds[0] < bounds[1] < math.inf:
            raise SettingError(f"bounds must be 0 < low < high, not {bounds}")
        self.shared = variance
        self.bounds = bounds

    def start(self, head: Head, scheme: Scheme) -> Tracker:
        """Begin with no prior: the first comes from the first `update_prior`."""
        return _EvidenceTracker(head, scheme, self)

    def __repr__(self) -> str:
        return f"Evidence(variance={self.shared!r})"


class _EvidenceTracker(DataTracker):
    _policy: Evidence

    def _updating_scheme(self) -> EvidenceMaximised | None:
        if isinstance(self._scheme, EvidenceMaximised):
            return self._scheme
        policy = self._policy
        return EvidenceMaximised(self._scheme, variance=policy.shared, bounds=policy.bounds)
