"""Estimators: how the moments of a gradient distribution are found."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayesagg_pyro.errors import UnsupportedError
from bayesagg_pyro.gradients._closed_forms import gaussian_averages, gaussian_moments
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._registry import might_be_registered, registered
from bayesagg_pyro.gradients._samples import factors_pay
from bayesagg_pyro.heads import Gaussian as GaussianHead
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Gaussian, Posterior
from bayesagg_pyro.targets import Targets


class Estimator(ABC):
    """Turns a posterior over weights into a gradient distribution.

    Subclasses give `estimate`, and the rest where they can do with less.
    """

    #: Whether means are a matter of the posterior, and not of the head's own weights alone. Where
    #: not, and nobody reads the variance, no posterior is made.
    mean_needs_posterior: bool = True

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse a head, or a kind of posterior, whose gradients this cannot estimate.

        Raises:
            DtypeError, UnsupportedError: naming both and the remedy.
        """
        return

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """Moments of the gradient; `generator` serves an estimator that has none of its own.

        They are of examples that all count once: weights of examples are applied afterwards.
        """

    def averaged(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution | None:
        """What `estimate` gives, where the average of the variance will do and is found for less.

        Weights of examples are applied. None where all examples cost as little.
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

    def averaged(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution | None:
        """For many examples of linear Gaussian heads with dense posteriors."""
        if not factors_pay(head, features, targets):
            return None
        known = registered(head, posterior) is gaussian_moments and head.embedding is None
        if not (known and isinstance(head, GaussianHead) and isinstance(posterior, Gaussian)):
            return None
        return gaussian_averages(head, posterior, features, targets)


def _no_formula(head: Head, kind: type[Posterior]) -> UnsupportedError:
    return UnsupportedError(
        f"head {head.site!r}: no exact gradient moments are registered for {type(head).__name__} "
        f"heads with {kind.__name__} posteriors; use gradients.MonteCarlo(), or register a formula "
        "with bayesagg_pyro.gradients.register"
    )
