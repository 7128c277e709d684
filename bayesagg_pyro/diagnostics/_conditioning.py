"""Whether floating point can still tell a posterior's directions apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro.diagnostics._moments import covariance_of
from bayesagg_pyro.diagnostics._thresholds import Check, judge
from bayesagg_pyro.posteriors import GaussianFamily, Posterior

__all__ = ["Conditioning", "conditioning"]


@dataclass(frozen=True)
class Conditioning:
    """Numerical health of a posterior.

    Attributes:
        condition: 2-norm condition number of the precision (of the sample covariance for samples),
            [tasks or 1].
        jitter: multiple of the diagonal that was added to factor it, [tasks or 1]; 0: none.
    """

    condition: Tensor
    jitter: Tensor

    def checks(self) -> list[Check]:
        """Condition number and jitter."""
        return [
            judge("condition", self.condition, ("task",)),
            judge("jitter", self.jitter, ("task",)),
        ]


def conditioning(posterior: Posterior) -> Conditioning:
    """Condition number, by an eigenvalue problem, and the jitter that inference took."""
    if isinstance(posterior, GaussianFamily):
        matrix = posterior.precision_matrix.double()
    else:
        matrix = covariance_of(posterior)
    values = torch.linalg.eigvalsh(matrix)
    low = values[..., 0].clamp(min=torch.finfo(values.dtype).tiny)
    info = posterior.info
    jitter = values.new_zeros(len(values)) if info is None else info.jitter
    return Conditioning(values[..., -1] / low, jitter)
