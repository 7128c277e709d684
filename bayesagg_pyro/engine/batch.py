"""A batch on its way through a call of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import Targets

__all__ = ["Batch"]


@dataclass(frozen=True)
class Batch:
    """A batch that has passed validation.

    Attributes:
        features: [B, d].
        observed: {name: parsed targets}.
        valid: the flag of deferred validation; None where values were checked at once.
        rows: which of the examples are this process's own, and
        processes: how many share the batch.
    """

    features: Tensor
    observed: Mapping[str, Targets]
    valid: Tensor | None
    rows: slice | None = None
    processes: int = 1

    def cleaned(self, heads: Mapping[str, Head]) -> Batch:
        """The batch, or harmless values where it is not valid: 0 · NaN would still be NaN."""
        valid = self.valid
        if valid is None:
            return self
        observed = {n: one.where(valid, heads[n].filler) for n, one in self.observed.items()}
        features = torch.where(valid, self.features, 0.0)
        return Batch(features, observed, valid, self.rows, self.processes)

    def own(self, update: Tensor) -> Tensor:
        """This process's rows of an update of all features, for a backbone that is averaged."""
        return update if self.rows is None else update[self.rows] * self.processes
