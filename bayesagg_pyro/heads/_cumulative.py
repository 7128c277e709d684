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


class Link(NamedTuple):
    """One distribution F.

    Attributes:
        quantile: F⁻¹.
        log_mass: log (F(b) − F(a)) from a, b and b − a.
        derivatives: of −log (F(b) − F(a)) in u, first and second, from the same.
        far: a gap beyond which there is no mass, wherever an interval begins.
    """

    quantile: Callable[[Tensor], Tensor]
    log_mass: Callable[[Tensor, Tensor, Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    far: float = 1e12  # whose square float32 still holds


def _logistic_log_mass(a: Tensor, b: Tensor, gap: Tensor) -> Tensor:
    """F(b) − F(a) = F(b) F(−a) (1 − exp(a − b)); the last factor does not depend on u."""
    logsigmoid = torch.nn.functional.logsigmoid
    return logsigmoid(b) + logsigmoid(-a) + (-torch.expm1(-gap)).log()


def _logistic_derivatives(a: Tensor, b: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    above, below = torch.sigmoid(-b), torch.sigmoid(a)
    return above - below, above * torch.sigmoid(b) + below * torch.sigmoid(-a)


def _normal_log_mass(a: Tensor, b: Tensor, gap: Tensor) -> Tensor:
    low, high, _ = _mirrored(a, b)
    # An interval around the mode has no small probability, but may have nearly all.
    inside = low < -1
    outside = torch.where(inside, low, -1.0), torch.where(inside, high, 1.0)
    around = torch.log1p(-upper_tail(-outside[0]) - upper_tail(outside[1]))
    low = torch.where(inside, 0.0, low)
    high = torch.where(inside, 1.0, high)
    scaled = _over_density(low, high, torch.where(inside, 1.0, gap))
    log_mass: Tensor = torch.where(inside, around, scaled.log() - 0.5 * low.square() - _LOG_ROOT)
    return log_mass


def _normal_derivatives(a: Tensor, b: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    low, high, sign = _mirrored(a, b)
    inverse = _over_density(low, high, gap).reciprocal()
    decay = gap * (0.5 * (low + high))
    slope = sign * torch.expm1(-decay) * inverse
    # The curvature is 1 − Var(x) for the normal on the interval: far out in the tail it is
    # exponential there, of rate `low`, and the sum of the terms below would cancel.
    terms = (high * (-decay).exp() - low) * inverse + slope.square()
    x = (0.5 * low * gap).clamp(max=100.0)
    tail = 1 - (1 - (x / x.sinh()).square()) / low.square()
    eps = torch.finfo(low.dtype).eps
    narrow = 1 - gap.square() / 12
    curvature = torch.where(low > eps**-0.25, tail, terms)
    curvature = torch.where(_is_narrow(low, gap), narrow, curvature)
    return slope, curvature.clamp(min=0)


def _mirrored(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reflect intervals into the right half; also the sign, −1 where one was reflected."""
    right = a + b >= 0
    return torch.where(right, a, -b), torch.where(right, b, -a), 2 * right.to(a.dtype) - 1


def _over_density(low: Tensor, high: Tensor, gap: Tensor) -> Tensor:
    """(Φ(high) − Φ(low)) / φ(low) for low + high ≥ 0: with no number too small, down to any tail.

    Φ(−x) / φ(x) is Mills' ratio, sqrt(π/2) erfcx(x / sqrt 2), and φ(high) / φ(low) = exp(−decay).
    """
    decay = gap * (0.5 * (low + high))
    wide = _mills(low) - _mills(high) * (-decay).exp()
    # Of a narrow interval by its middle: the difference would cancel.
    is_narrow = _is_narrow(low, gap)
    gap, middle = torch.where(is_narrow, gap, 0.0), torch.where(is_narrow, 0.5 * (low + high), 0.0)
    narrow = gap * (-0.5 * gap * (low + 0.25 * gap)).exp()
    narrow = narrow * (1 + gap.square() * (middle.square() - 1) / 24)
    return torch.where(is_narrow, narrow, wide)


def _is_narrow(low: Tensor, gap: Tensor) -> Tensor:
    """Whether the next term of an expansion in the gap is below rounding."""
    small: Tensor = gap * (1 + low.abs()) < torch.finfo(low.dtype).eps ** 0.2
    return small


def upper_tail(x: Tensor) -> Tensor:
    """1 − Φ(x) to its last digit; `ndtr(-x)` goes through erf, which rounds at 1."""
    tail: Tensor = 0.5 * torch.special.erfc(math.sqrt(0.5) * x)
    return tail


def log_upper_tail(x: Tensor) -> Tensor:
    """Its logarithm; `torch.func.vmap` runs `log_ndtr(-x)` draw by draw, with a warning."""
    right, left = x.clamp(min=0), x.clamp(max=0)
    far = _mills(right).log() - 0.5 * right.square() - _LOG_ROOT
    return torch.where(x > 0, far, torch.log1p(-upper_tail(-left)))


def _mills(x: Tensor) -> Tensor:
    ratio: Tensor = math.sqrt(0.5 * math.pi) * torch.special.erfcx(math.sqrt(0.5) * x)
    return ratio


_LOG_ROOT = 0.5 * math.log(2 * math.pi)

LINKS: dict[str, Link] = {
    "logit": Link(torch.logit, _logistic_log_mass, _logistic_derivatives),
    "probit": Link(torch.special.ndtri, _normal_log_mass, _normal_derivatives),
}
