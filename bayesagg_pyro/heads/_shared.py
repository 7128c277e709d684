"""Heads whose tasks share one vector of weights, in which their outputs need not be linear."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro._pieces import LARGE, fitting
from bayesagg_pyro.heads._head import Head


class SharedWeights(Head, ABC):
    """One block of P weights for all tasks: posteriors have batch shape [1] and event shape [P].

    The posterior couples the tasks; the gradient distribution holds each task's own moments, as
    aggregation reads them. Subclasses give `weight` and `forward`, or `losses` and
    `negative_log_probs` where outputs do not suffice for the likelihood.
    """

    @property
    def blocks(self) -> int:
        """All tasks share their weights."""
        return 1

    @property
    def weight_size(self) -> int:
        """P, the number of weights."""
        return self.weight.numel()

    def point(self) -> Tensor:
        """The point estimate, [1, P]."""
        return self.weight.reshape(1, -1)

    def _at_draws(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        features: Tensor,
        weight: Tensor,
        entries: int,
    ) -> Tensor:
        """A function of features and weights [P] at weights [..., 1, P], of all draws at once.

        Args:
            function: of both in the weights' precision.
            features: [B, d].
            weight: [1, P], or draws with more axes in front.
            entries: of the largest temporary of one draw.
        """
        features = features.to(weight.dtype)
        if weight.ndim == 2:
            return function(features, weight[0])
        draws = weight.reshape(-1, weight.shape[-1])
        size = fitting(entries, LARGE)
        mapped = torch.func.vmap(function, in_dims=(None, 0), chunk_size=size)
        found: Tensor = mapped(features, draws).unflatten(0, weight.shape[:-2])
        return found
