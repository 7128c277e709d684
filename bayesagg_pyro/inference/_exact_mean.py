"""The mean of a dense posterior at the price of a Kronecker one, by conjugate gradients.

A Kronecker sum stands for Σ_b H_b ⊗ h_b h_bᵀ, which it is not, and a Newton step with it goes too
far where few examples are uncertain. But it is a good preconditioner of the step with the sum
itself, whose product with a vector needs no matrix: (H_b V h_b) h_bᵀ for each example. The first
of the iterations alone finds how far to go along the Kronecker step.

Hestenes and Stiefel (1952), https://doi.org/10.6028/jres.049.044.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference._expansion import Chunk, curvature_times
from bayesagg_pyro.posteriors import GaussianFamily

#: Weights of a task from which the step is made but as long as it should be.
_MANY = 2**17


class Solved(NamedTuple):
    """An approximate minimum of a quadratic.

    Attributes:
        step: s, [tasks, P].
        decrease: −aᵀ s, twice what the quadratic promises, [tasks].
        tension: sᵀ Λ_p s, [tasks].
    """

    step: Tensor
    decrease: Tensor
    tension: Tensor


def exact_mean(
    head: Head,
    chunks: Iterable[Chunk],
    prior: GaussianFamily,
    point: Tensor,
    gradient: Tensor,
    start: Tensor,
    preconditioner: GaussianFamily,
    steps: int,
) -> Solved:
    """So many iterations for (Λ_p + Σ_b H_b ⊗ h_b h_bᵀ) s = −a.

    Args:
        head: with linear outputs.
        chunks: of the examples; gone through anew each time.
        prior: of precision Λ_p.
        point: weights at which H is taken, [tasks, P].
        gradient: a, [tasks, P].
        start: s by the preconditioner alone, [tasks, P].
        preconditioner: of a precision near that of the system.
        steps: of the iteration, at least 1; there is but one for very many weights, where each
            takes as long as the rest.
    """
    times = curvature_times(head, chunks, point)
    residual, direction = -gradient, start
    if start.shape[1] > _MANY:
        steps = 1
    length = (residual * direction).sum(-1, keepdim=True)
    step, pulled = torch.zeros_like(gradient), torch.zeros_like(gradient)
    for last in range(steps - 1, -1, -1):
        of_prior = prior.precision_times(direction)
        product = of_prior + times(direction)
        share = _ratio(length, (direction * product).sum(-1, keepdim=True))
        step = step + share * direction
        pulled = pulled + share * of_prior
        if not last:
            break
        residual = residual - share * product
        solved = preconditioner.solve(residual)
        before, length = length, (residual * solved).sum(-1, keepdim=True)
        direction = solved + _ratio(length, before) * direction
    return Solved(step, -(gradient * step).sum(-1), (pulled * step).sum(-1))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """0 where there is nothing left to do."""
    return torch.where(b > 0, a / b.clamp(min=torch.finfo(b.dtype).tiny), 0.0)
