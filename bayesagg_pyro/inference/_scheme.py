"""What an inference scheme is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._examples import Examples, Keep
from bayesagg_pyro.inference._statistics import Statistics
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets

__all__ = ["Scheme"]


class Scheme(ABC):
    """Maps (head, features, targets, prior) to a posterior over the head's weights.

    A scheme holds settings only; calling it changes nothing. Subclasses need `infer` alone: a
    full-data posterior is then inferred from all examples kept. A scheme whose likelihood has
    sufficient statistics overrides `statistics` and `infer_from` and keeps sums instead.
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

    def statistics(self, head: Head, keep: Keep) -> Statistics:
        """An empty collection of training batches, from which `infer_from` makes a posterior.

        Args:
            head: the head.
            keep: how to keep examples, for schemes that need them.
        """
        return Examples(head, keep)

    def infer_from(self, head: Head, statistics: Statistics, prior: Posterior) -> Posterior:
        """Posterior over the weights of `head` given all examples in `statistics`."""
        assert isinstance(statistics, Examples)
        features, targets = statistics.all()
        return self.infer(head, features, targets, prior)
