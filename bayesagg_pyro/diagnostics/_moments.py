"""First two moments of any posterior, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, Posterior

__all__ = ["covariance_of", "mean_of", "same_weights"]

_DRAWS = 4096


def mean_of(posterior: Posterior) -> Tensor:
    """Mean of a posterior, [tasks, P]."""
    return posterior.mean.detach().double()


def covariance_of(posterior: Posterior, generator: torch.Generator | None = None) -> Tensor:
    """[tasks, P, P]: exact for Gaussians and stored samples, else from 4,096 draws."""
    if isinstance(posterior, GaussianFamily):
        return posterior.covariance_matrix.double().expand(posterior.tasks, -1, -1)
    if isinstance(posterior, Empirical):
        draws = posterior.samples.double()
    else:
        draws = posterior.sample((_DRAWS,), generator=generator).double()
    centred = draws - draws.mean(0)
    return torch.einsum("stp,stq->tpq", centred, centred) / (len(draws) - 1)


def same_weights(first: Posterior, second: Posterior) -> None:
    """Refuse posteriors over the weights of different heads.

    Raises:
        ShapeError: naming both shapes.
    """
    shapes = [[*p.batch_shape, *p.event_shape] for p in (first, second)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"posteriors over weights of shapes {shapes[0]} and {shapes[1]} (tasks, weights of one "
            "task) cannot be compared; take two of the same head"
        )
