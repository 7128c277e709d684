"""Estimators: how the moments of a gradient distribution are found."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._registry import registered
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["Estimator", "Exact"]


class Estimator(ABC):
    """Turns a posterior over weights into a gradient distribution."""

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


class Exact(Estimator):
    """The registered closed form for this head and posterior; an error where there is none."""

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
            NotImplementedError: naming both types, if none is registered.
        """
        formula = registered(head, posterior)
        if formula is None:
            raise NotImplementedError(
                f"no exact gradient moments are registered for {type(head).__name__} heads with "
                f"{type(posterior).__name__} posteriors; use gradients.MonteCarlo(), or register "
                "a formula with bayesagg_pyro.gradients.register"
            )
        return formula(head, posterior, features, targets)

    def __repr__(self) -> str:
        return "Exact()"
