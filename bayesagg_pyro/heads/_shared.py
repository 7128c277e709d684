"""Heads whose tasks share one vector of weights, in which their outputs need not be linear."""

from __future__ import annotations

from abc import ABC

from torch import Tensor

from bayesagg_pyro.heads._head import Head

__all__ = ["SharedWeights"]


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
