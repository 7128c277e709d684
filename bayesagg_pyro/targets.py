"""Targets of one head after parsing: values, and which of them were observed."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["RawTargets", "Targets"]


class Targets(NamedTuple):
    """Parsed targets; what stages pass to each other.

    Attributes:
        values: [B, tasks], finite; the entries that are not observed hold a harmless filler.
        mask: [B, tasks] bool, True where observed; None when everything is.
    """

    values: Tensor
    mask: Tensor | None = None

    def counts(self) -> Tensor:
        """Observed examples of each task, [tasks]."""
        if self.mask is not None:
            return self.mask.sum(0)
        batch, tasks = self.values.shape
        return torch.full((tasks,), batch, device=self.values.device)

    def mean(self, per_example: Tensor) -> Tensor:
        """Mean of a [B, tasks] quantity over the observed examples; 0 for a task with none."""
        if self.mask is None:
            return per_example.mean(0)
        total = torch.where(self.mask, per_example, 0.0).sum(0)
        return total / self.counts().clamp(min=1)


#: What users pass: values, or (values, mask).
RawTargets: TypeAlias = Tensor | tuple[Tensor, Tensor] | Targets
