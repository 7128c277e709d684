"""What an inference scheme is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets

__all__ = ["Scheme"]


class Scheme(ABC):
    """Maps (head, features, targets, prior) to a posterior over the head's weights.

    A scheme holds settings only; calling it changes nothing. Give a subclass to
    `BayesAgg(inference=...)` to use it.
    """

    #: Whether the scheme expands around the head's learned point estimate, which must then be
    #: trained by the gradient of its loss.
    needs_point: ClassVar[bool] = False

    @abstractmethod
    def infer(
        self, head: Head, features: Tensor, targets: RawTargets, prior: Posterior
    ) -> Posterior:
        """Posterior over the weights of `head`.

        Args:
            head: the head.
            features: [N, d]; no gradient flows into them.
            targets: [N, tasks], or (values, mask).
            prior: batch shape [tasks]; any posterior serves.
        """

    @abstractmethod
    def statistics(self, head: Head) -> Statistics:
        """An empty collection of training batches, from which `infer_from` makes a posterior."""

    @abstractmethod
    def infer_from(self, head: Head, statistics: Statistics, prior: Posterior) -> Posterior:
        """Posterior over the weights of `head` given all examples in `statistics`."""
