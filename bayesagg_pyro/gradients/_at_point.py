"""Gradients at one point, which are certain: at a `posteriors.Point`, or the head's own weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError
from bayesagg_pyro.gradients._estimator import Estimator
from bayesagg_pyro.gradients._lazy import Certain
from bayesagg_pyro.gradients._samples import (
    are_linear,
    factors_pay,
    output_slopes,
    sampled_gradients,
)
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Point, Posterior
from bayesagg_pyro.targets import Targets


class AtPoint(Estimator):
    """∂ℓ/∂h at the weights of a `posteriors.Point`, by automatic differentiation; variance 0."""

    def check(self, head: Head, kind: type[Posterior]) -> None:
        """Refuse posteriors other than a `Point`."""
        if not issubclass(kind, Point):
            raise _no_point(head, kind)

    def estimate(
        self,
        head: Head,
        posterior: Posterior,
        features: Tensor,
        targets: Targets,
        generator: torch.Generator | None = None,
    ) -> GradientDistribution:
        """The gradient of each task and example.

        Raises:
            DtypeError: if the posterior is not a point.
        """
        if not isinstance(posterior, Point):
            raise _no_point(head, type(posterior))
        at = posterior.to(features.device, linalg.head_dtype(features.device))
        return _certain(head, at.value, features, targets)


def _no_point(head: Head, kind: type[Posterior]) -> DtypeError:
    return DtypeError(
        f"head {head.site!r}: AtPoint is for posteriors.Point, not {kind.__name__}; use "
        "gradients.MonteCarlo()"
    )


def at_weights(
    head: Head, features: Tensor, targets: Targets, *, average: bool = False
) -> GradientDistribution:
    """The gradient at the head's own weights; of many examples by factors, if its average will do.

    Args:
        head: the head.
        features: [B, d].
        targets: [B, tasks].
        average: whether moments are best left to be made when somebody asks for them.
    """
    weight = head.point().detach().to(linalg.head_dtype(features.device))
    lazy = average and head.embedding is None and not torch.is_inference_mode_enabled()
    if not (lazy and factors_pay(head, features, targets) and are_linear(head)):
        return _certain(head, weight, features, targets)
    (slope,) = output_slopes(head, weight[None], features, targets)
    rows = weight.unflatten(-1, (head.outputs_per_task, -1))[..., : head.in_features]
    return Certain.of(
        partial(_certain, head, weight, features, targets),
        slope=slope.to(features.dtype),
        weight=rows.to(features.dtype),
        observed=None if targets.mask is None else targets.mask.mT,
        _like=features.new_empty(0),
        shape=torch.Size([head.tasks, *features.shape]),
    )


def _certain(
    head: Head, weight: Tensor, features: Tensor, targets: Targets
) -> GradientDistribution:
    """The gradient at weights [blocks, P], without variance; 0 where a target is missing."""
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        (mean,) = sampled_gradients(head, weight[None], features, targets)
    observed = None if targets.mask is None else targets.mask.mT
    if observed is not None:
        mean = torch.where(observed[..., None], mean, 0.0)
    certain, none = mean.to(features.dtype), mean.new_zeros((), dtype=features.dtype)
    shape = mean.shape
    return GradientDistribution(
        certain,
        torch.zeros_like(certain),
        observed=observed,
        covariance=lambda: none.expand(*shape, shape[-1]),
        sampler=lambda count, generator: certain.expand(count, *shape),
        error=lambda: MomentError(none.expand(shape), none.expand(shape)),
    )
