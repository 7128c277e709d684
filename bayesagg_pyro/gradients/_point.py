"""Weights that are known: the ordinary gradient, without variance."""

from __future__ import annotations

import torch

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._distribution import GradientDistribution, without_variance
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._samples import sampled_gradients
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Point, Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["AtPoint"]


class AtPoint(Estimator):
    """∂ℓ/∂h at the weights of a `posteriors.Point`, by automatic differentiation; variance 0."""

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse posteriors other than a `Point`."""
        if not issubclass(kind, Point):
            raise _refused(head, kind)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: torch.Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """The gradient of each task and example.

        Raises:
            DtypeError: if the posterior is not a point.
        """
        if not isinstance(posterior, Point):
            raise _refused(head, type(posterior))
        at = posterior.to(features.device, linalg.head_dtype(features.device))
        (mean,) = sampled_gradients(head, at.sample((1,)), features, targets)
        return without_variance(head, at, features, targets, mean)

    def __repr__(self) -> str:
        return "AtPoint()"


def _refused(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: AtPoint is for posteriors.Point, not {kind.__name__}; use "
        "gradients.MonteCarlo()"
    )
