"""How far estimated moments may be off, and estimating until that is little enough."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError

#: Independent repetitions behind a sampled standard error, which is right to 18 %.
REPEATS = 16


class Moments(NamedTuple):
    """Mean and variance of gradients, [tasks, B, d] each."""

    mean: Tensor
    variance: Tensor


def refined(rough: Moments, fine: Moments) -> MomentError:
    """Error of a rule's moments, from those of a much finer one.

    Twice the difference, for integrands with jumps, with which the finer one has errors too.
    """
    return MomentError(*((2 * (a - b)).abs() for a, b in zip(rough, fine, strict=True)))


def repeated(
    estimate: Callable[[torch.Generator], Moments], device: torch.device, share: float = 1.0
) -> MomentError:
    """Standard error of sampled moments, by their scatter over independent repetitions.

    Nobody's random numbers are used up: the repetitions have a generator of their own.

    Args:
        estimate: makes the moments anew.
        device: of the random numbers.
        share: of the samples that a repetition takes; plain draws need not be repeated in full.
    """
    generator = torch.Generator(device).manual_seed(0)
    found = [estimate(generator) for _ in range(REPEATS)]
    return MomentError(
        *(torch.stack(each).std(0) * math.sqrt(share) for each in zip(*found, strict=True))
    )


def until(
    tolerance: float | None,
    attempt: Callable[[int], GradientDistribution],
    count: int,
    limit: int,
    what: str,
) -> GradientDistribution:
    """Double nodes or samples until the estimated error is within the tolerance.

    Args:
        tolerance: of the mean in standard deviations and of the variance relative to it, each a
            root mean square over the features, for every task and example; None tries once.
        attempt: makes the distribution with that many nodes or samples.
        count: to begin with.
        limit: where to stop, with a warning.
        what: how the warning names them.
    """
    grad = attempt(count)
    if tolerance is None:
        return grad
    while True:
        error = grad.moment_error
        worst = _relative(grad, error)
        if not worst > tolerance or count >= limit:  # more would not mend NaN
            break
        count = min(2 * count, limit)
        grad = attempt(count)
    if not worst <= tolerance:
        warnings.warn(
            f"{what}: with {count} the moments of the gradient are still up to {worst:.2g} off "
            f"(of a standard deviation, or of the variance); {tolerance:.2g} was asked for",
            RuntimeWarning,
            stacklevel=3,
        )
    return replace(grad, error=lambda: error)


def _relative(grad: GradientDistribution, error: MomentError) -> float:
    """The largest relative error over tasks and examples; waits for the device."""
    known = grad.variance > 0
    variance = torch.where(known, grad.variance, 1.0).double()
    ratios = (error.mean / variance.sqrt(), error.variance / variance)
    worst = [torch.where(known, r, 0.0).square().mean(-1).max().sqrt() for r in ratios]
    return float(torch.stack(worst).max())
