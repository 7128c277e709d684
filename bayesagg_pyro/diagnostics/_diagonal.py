"""What is lost by treating the dimensions of a gradient one by one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.diagnostics._gradients import seen_only
from bayesagg_pyro.diagnostics._thresholds import Check, judge_known
from bayesagg_pyro.gradients import GradientDistribution

__all__ = ["DroppedByDiagonal", "diagonal_against_full"]


@dataclass(frozen=True)
class DroppedByDiagonal:
    """The update with full covariances compared with the update from their diagonals, power 1.

    Attributes:
        cosine: of the two directions of each example, [B].
        norm_ratio: ‖full‖ / ‖diagonal‖, [B].
        correlation: mean absolute correlation between dimensions of a gradient, [tasks].
    """

    cosine: Tensor
    norm_ratio: Tensor
    correlation: Tensor

    def checks(self) -> list[Check]:
        """The median cosine over examples."""
        return judge_known("diagonal", self.cosine.nanmedian())


def diagonal_against_full(grad: GradientDistribution) -> DroppedByDiagonal:
    """What is lost by treating dimensions one by one; costs [tasks, B, d, d].

    Raises:
        StateError: if the estimator offers no covariance.
    """
    rules = PrecisionWeighted.paper(covariance="full"), PrecisionWeighted.paper()
    with warnings.catch_warnings():  # that weights per example are constant is no news here
        warnings.simplefilter("ignore")
        full, diagonal = (rule.aggregate(grad).direction.double() for rule in rules)
    norms = [torch.linalg.vector_norm(g, dim=-1) for g in (full, diagonal)]
    covariance = grad.covariance_matrix.double()
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = covariance / (deviation[..., :, None] * deviation[..., None, :])
    size = correlation.shape[-1]
    off = ~torch.eye(size, dtype=torch.bool, device=correlation.device)
    return DroppedByDiagonal(
        (full * diagonal).sum(-1) / (norms[0] * norms[1]),
        norms[0] / norms[1],
        seen_only(correlation[..., off].abs(), grad).flatten(1).nanmean(1),
    )
