"""Probabilities of intervals under a symmetric distribution, and their derivatives.

With P = F(b) − F(a), a = θ_{k−1} − u and b = θ_k − u, the functions here give log P and the first
two derivatives of −log P in u. None forms P itself, which underflows, nor the difference of two
probabilities near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LINKS", "Link"]


class Link(NamedTuple):
    """One distribution F.

    Attributes:
        quantile: F⁻¹.
        log_mass: log (F(b) − F(a)) from a, b and b − a.
        derivatives: of −log (F(b) − F(a)) in u, first and second, from the same.
        far: a bound beyond which there is no mass.
    """

    quantile: Callable[[Tensor], Tensor]
    log_mass: Callable[[Tensor, Tensor, Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    far: float = 1e8  # of which the normal's log-probability still has derivatives


def _logistic_log_mass(a: Tensor, b: Tensor, gap: Tensor) -> Tensor:
    """F(b) − F(a) = F(b) F(−a) (1 − exp(a − b)); the last factor does not depend on u."""
    logsigmoid = torch.nn.functional.logsigmoid
    return logsigmoid(b) + logsigmoid(-a) + (-torch.expm1(-gap)).log()


def _logistic_derivatives(a: Tensor, b: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    above, below = torch.sigmoid(-b), torch.sigmoid(a)
    return above - below, above * torch.sigmoid(b) + below * torch.sigmoid(-a)


def _normal_log_mass(a: Tensor, b: Tensor, gap: Tensor) -> Tensor:
    # Mirrored into the left half, where F(b) is the larger and none is near 1.
    right: Tensor = a + b > 0
    low, high = torch.where(right, -b, a), torch.where(right, -a, b)
    log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    log_mass: Tensor = log_high + (-torch.expm1(log_low - log_high)).log()
    return log_mass


def _normal_derivatives(a: Tensor, b: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    log_mass = _normal_log_mass(a, b, gap)
    at_a, at_b = (_log_normal(x).sub(log_mass).exp() for x in (a, b))
    slope = at_b - at_a
    return slope, (b * at_b - a * at_a + slope.square()).clamp(min=0)


def _log_normal(x: Tensor) -> Tensor:
    return -0.5 * x.square() - 0.5 * math.log(2 * math.pi)


LINKS: dict[str, Link] = {
    "logit": Link(torch.logit, _logistic_log_mass, _logistic_derivatives),
    "probit": Link(torch.special.ndtri, _normal_log_mass, _normal_derivatives),
}
