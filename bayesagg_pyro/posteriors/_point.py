"""Weights that are known exactly, as in an ordinary linear layer: a distribution of width 0."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Posterior, Shape


class Point(Posterior):
    """The weights are known: mean `value`, variance 0.

    Args:
        value: [tasks, P].
        outputs_per_task: linear outputs of one task.
        info: how it was found, if that is known.
    """

    has_rsample = False
    arguments = ("value",)

    def __init__(
        self, value: Tensor, *, outputs_per_task: int = 1, info: Info | None = None
    ) -> None:
        super().__init__(*value.shape, outputs_per_task=outputs_per_task, info=info)
        self.value = value

    @property
    def mean(self) -> Tensor:
        """The weights, [tasks, P]."""
        return self.value

    @property
    def variance(self) -> Tensor:
        """Zeros, [tasks, P]."""
        return torch.zeros_like(self.value)

    def sample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The same weights every time, [*sample_shape, tasks, P]."""
        return self.value.expand(*sample_shape, *self.value.shape)
