"""A one-dimensional rule for Gaussian expectations that stays right for wide posteriors.

It is a trapezoid in t with z = z₀ + ω sinh t, where z₀ is the place at which the integrand bends
and ω its width there: evenly spaced where the normal is narrower than the bend, dense around the
bend where it is wider. In either case no pole comes near the real axis of t, so the error falls
exponentially with the number of nodes. (Gauss-Hermite rules see a step once the standard deviation
of a logit exceeds about 3.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["EXPONENTIAL", "Transition", "normal_rule"]

#: Range of z on each side that carries the normal's mass: 2e-9 lies outside.
_RANGE = 6.0
#: Width of the dense part of the rule, in widths of the bend; tuned for the logistic.
_SPREAD = 6.0
#: A bend further away than this does not matter; the limit keeps tiny variances from cancelling.
_FAR = 20.0


class Transition(NamedTuple):
    """What a rule must know of a function f(u): broadcastable to the shape of u where tensors.

    Attributes:
        centre: where it bends.
        width: over what width it does, 1 for the logistic function.
        growth: up to the bend it may change like exp(growth · |u|), as the logistic does; 0 where
            it changes like a power at most.
        tail: it may grow like exp(tail · |u|) without end, on either side.
    """

    centre: Tensor | float = 0.0
    width: Tensor | float = 1.0
    growth: float = 1.0
    tail: float = 0.0


#: Of functions such as exp(u) − y: no bend, so evenly spaced nodes, and as far as exp(2u) has mass.
EXPONENTIAL = Transition(0.0, 1e3, tail=1.0)


def normal_rule(
    mean: Tensor,
    std: Tensor,
    nodes: int,
    transition: Transition | tuple[Tensor | float, Tensor | float] = (0.0, 1.0),
) -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations over z ~ N(0, 1) of functions of u = mean + std · z.

    Args:
        mean: [...].
        std: [...], at least 0.
        nodes: N.
        transition: where in u the function bends and over what width; more in `Transition`.

    Returns:
        z and weights that sum to 1, both [N, ...].
    """
    centre, width, growth, tail = Transition(*transition)
    tiny = torch.finfo(std.dtype).tiny
    bend = ((centre - mean) / std.clamp(min=tiny)).clamp(-1e3, 1e3)
    # Where f grows like exp(|u|), far out on its side of the bend or beyond, its square peaks at
    # 2 std.
    reach, beyond = 2 * growth * std, 2 * tail * std
    low = -_RANGE - torch.maximum(torch.minimum((-bend).clamp(min=0), reach), beyond)
    high = _RANGE + torch.maximum(torch.minimum(bend.clamp(min=0), reach), beyond)
    bend = bend.clamp(-_FAR, _FAR)
    spread = _SPREAD * width / torch.clamp(std, min=0.1)
    start, stop = torch.asinh((low - bend) / spread), torch.asinh((high - bend) / spread)
    unit = torch.linspace(0, 1, nodes, dtype=mean.dtype, device=mean.device)
    growing = torch.addcmul(start, stop - start, unit.reshape(-1, *[1] * mean.ndim)).exp_()
    falling = growing.reciprocal()
    z = torch.addcmul(bend, growing - falling, 0.5 * spread)
    weight = growing.add_(falling).mul_(z.square().mul_(-0.5).exp_())  # 2 cosh t · exp(−z²/2)
    return z, weight.div_(weight.sum(0))
