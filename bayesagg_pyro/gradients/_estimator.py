"""Estimators: how the moments of a gradient distribution are found."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayesagg_pyro.errors import UnsupportedError
from bayesagg_pyro.gradients._closed_forms import gaussian_moments
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._gaussian_averages import averages
from bayesagg_pyro.gradients._registry import might_be_registered, registered
from bayesagg_pyro.heads import Gaussian as GaussianHead
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Gaussian, Posterior
from bayesagg_pyro.targets import Targets


class Estimator(ABC):
    """Turns a posterior over weights into a gradient distribution.

    Subclasses give `estimate`. All else is for those that can do with less: a mean without a
    posterior, a variance that is an average over examples, moments that nobody makes.
    """

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse a head, or a kind of posterior, whose gradients this cannot estimate.

        Raises:
            DtypeError, UnsupportedError: naming both and the remedy.
        """
        return

    #: Whether means are a matter of the posterior, and not of the head's own weights alone. Where
    #: not, and nobody reads the variance, no posterior is made, and `at_weights` is asked.
    mean_needs_posterior: bool = True

    #: Examples that do for an average of the variance over a larger batch; None for all of them.
    average_rows: int | None = None

    def rows_for_average(self, head: Head) -> int | None:
        """`average_rows`, or fewer where an example of that head costs much."""
        return self.average_rows

    @abstractmethod
    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Moments of the gradient; `generator` serves an estimator that has none of its own."""

    def mean(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> Tensor | None:
        """E g alone, [tasks, B, d], where that is much cheaper than both moments; else None."""
        return None

    def at_weights(
        self, head: Head, features: Tensor, targets: Targets, *, factored: bool = False
    ) -> GradientDistribution:
        """The gradient at the head's own weights, without variance.

        Args:
            head: the head.
            features: [B, d].
            targets: [B, tasks].
            factored: whether its moments are best left to be made when somebody asks for them.
        """
        raise NotImplementedError

    def factored(
        self, head: Head, posterior: Posterior, features: Tensor, targets: Targets
    ) -> GradientDistribution | None:
        """What `estimate` gives, whose averages are found without moments of size [tasks, B, d].

        None where there is no such thing.
        """
        return None


class Exact(Estimator):
    """The registered closed form for this head and posterior; an error where there is none."""

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse pairs without a formula, for whatever posterior of that kind."""
        if not might_be_registered(head, kind):
            raise _no_formula(head, kind)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Moments by the registered formula.

        Raises:
            UnsupportedError: naming both types, if none is registered.
        """
        formula = registered(head, posterior)
        if formula is None:
            raise _no_formula(head, type(posterior))
        return formula(head, posterior, features, targets)

    def factored(
        self, head: Head, posterior: Posterior, features: Tensor, targets: Targets
    ) -> GradientDistribution | None:
        """For linear Gaussian heads with dense posteriors."""
        known = registered(head, posterior) is gaussian_moments and head.embedding is None
        if not (known and isinstance(head, GaussianHead) and isinstance(posterior, Gaussian)):
            return None
        return averages(head, posterior, features, targets)

    def __repr__(self) -> str:
        return "Exact()"


def _no_formula(head: Head, kind: type[Posterior]) -> UnsupportedError:
    return UnsupportedError(
        f"head {head.site!r}: no exact gradient moments are registered for {type(head).__name__} "
        f"heads with {kind.__name__} posteriors; use gradients.MonteCarlo(), or register a formula "
        "with bayesagg_pyro.gradients.register"
    )
