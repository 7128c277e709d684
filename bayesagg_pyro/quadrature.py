"""One-dimensional quadrature for Gaussian expectations, accurate for wide posteriors too.

It is a trapezoid in t with z = z₀ + κ log((1 + q eᵗ) / (1 + q e⁻ᵗ)), z₀ being the place where the
integrand bends. For q = 1 that is z = z₀ + κ t, evenly spaced: right where the normal is narrower
than the bend. For a small q it is logarithmic from the bend's width, 2 κ q, up to the normal's, and
evenly spaced beyond, so that both scales are resolved. Singularities at z₀ ± i 2 κ q, and others
above or below z₀ further out, lie at a height of π/2 over the real axis of t, whatever q is: the
error falls exponentially with the number of nodes (Trefethen and Weideman, 2014,
https://doi.org/10.1137/130932132), which must grow like the logarithm of the ratio of the two
widths alone. (Gauss-Hermite rules see a step once the standard deviation of a logit
exceeds about 3.)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["EXPONENTIAL", "Transition", "normal_rule"]

#: Range of z on each side that carries the normal's mass: 2e-9 lies outside.
_RANGE = 6.0
#: κ: where logarithmic spacing ends, in standard deviations.
_EVEN = 1.5
#: What is further away does not matter: the normal's density there is 1e-348.
_FAR = 40.0
#: As far off a bend is worth nodes: deviations of what lies beyond are 1e-21 and less.
_REACH = 14.0
_GAMMA_NODES = 128
#: The density of log λ is negligible where it is below exp(−_DEPTH) of its peak ...
_DEPTH = 40.0
#: ... but observations far out ask for λ as small as exp(−_TAIL), whatever ν is.
_TAIL = 30.0


class Transition(NamedTuple):
    """Where a function f(u) bends, for the rule to place its nodes; tensors broadcast against u.

    Attributes:
        centre: where it bends.
        width: over what width it does, 1 for the logistic function; 1/π of the distance of the
            nearest singularity in the complex plane. 0 where that is not known, for all down to
            `finest`.
        growth: up to the bend it may change like exp(growth · |u|), as the logistic does; 0 where
            it changes like a power at most; infinite where it does so like a normal density over
            that width, as the probit's does.
        tail: it may grow like exp(tail · |u|) without end, on either side.
        nodes: how many the rule takes unless told.
        gap: half the distance between two bends, at centre ± gap; None for one.
        finest: narrower bends, in units of the posterior's width, are taken as a step, as the
            logistic's may be; 0 where f or its square has a peak there.
    """

    centre: Tensor | float = 0.0
    width: Tensor | float = 1.0
    growth: float = 1.0
    tail: Tensor | float = 0.0
    nodes: int = 28
    gap: Tensor | None = None
    finest: float = 1e-4

    def examples(self, rows: slice) -> Transition:
        """For some of the examples, of an integrand over [B, tasks]."""
        parts = (self.centre, self.width, self.tail, self.gap)
        own: list[Any] = [
            part[rows] if isinstance(part, Tensor) and part.ndim > 1 and len(part) > 1 else part
            for part in parts
        ]
        centre, width, tail, gap = own
        return self._replace(centre=centre, width=width, tail=tail, gap=gap)

    def doubted(self, std: Tensor) -> Transition:
        """For a rule that judges another: a narrower bend, and more weight on the tails, [...]."""
        tail = torch.maximum((3 / std.clamp(min=3)), torch.zeros_like(std) + self.tail)
        return self._replace(width=0.1 * self.width, tail=tail, finest=0.1 * self.finest)


#: Of functions such as exp(u) − y: no bend, so evenly spaced nodes, and as far as exp(2u) has mass.
EXPONENTIAL = Transition(0.0, 1e3, tail=1.0, nodes=48)


def normal_rule(
    mean: Tensor,
    std: Tensor,
    nodes: int | None = None,
    transition: Transition | tuple[Tensor | float, Tensor | float] = (0.0, 1.0),
) -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations over z ~ N(0, 1) of functions of u = mean + std · z.

    Args:
        mean: [...].
        std: [...], at least 0.
        nodes: N; None for as many as the transition asks for.
        transition: where in u the function bends and over what width; more in `Transition`.

    Returns:
        z and weights that sum to 1 (of two bends, up to the rule's error), both [N, ...].
    """
    centre, width, growth, tail, wanted, gap, finest = transition = Transition(*transition)
    if gap is not None:
        return _two_bends(mean, std, nodes or wanted, transition, gap)
    tiny = torch.finfo(std.dtype).tiny
    bend = ((centre - mean) / std.clamp(min=tiny)).clamp(-_FAR, _FAR)
    # Where f grows like exp(|u|), far out on its side of the bend or beyond, its square peaks at
    # 2 std; like exp(u²/2), at that share of the way to the bend.
    reach, beyond = 2 * growth * std, (2 * tail * std).clamp(max=_FAR)
    if growth == math.inf:
        reach = bend.abs() * 2 / (2 + (width / std.clamp(min=tiny)).square())
    reach = reach.clamp(max=_REACH)
    low = -_RANGE - torch.maximum(torch.minimum((-bend).clamp(min=0), reach), beyond)
    high = _RANGE + torch.maximum(torch.minimum(bend.clamp(min=0), reach), beyond)
    narrow = (width / std.clamp(min=tiny)).clamp(min=max(finest, torch.finfo(std.dtype).eps))
    q = (0.5 * math.pi / _EVEN * narrow).clamp(max=1.0)
    start = _inverse((low - bend) / (2 * _EVEN), q)
    stop = _inverse((high - bend) / (2 * _EVEN), q)
    unit = torch.linspace(0, 1, nodes or wanted, dtype=mean.dtype, device=mean.device)
    growing = torch.addcmul(start, stop - start, unit.reshape(-1, *[1] * mean.ndim)).exp_()
    falling = growing.reciprocal()
    one = q.new_ones(())
    above, below = torch.addcmul(one, growing, q), torch.addcmul(one, falling, q)
    # dz/dt = κ q (2 cosh t + 2 q) / ((1 + q eᵗ) (1 + q e⁻ᵗ)); large temporaries are used again.
    weight = growing.add_(falling).add_(2 * q).div_(torch.mul(above, below, out=falling))
    z = above.div_(below).log_().mul_(_EVEN).add_(bend)
    weight.mul_(torch.mul(z, z, out=below).mul_(-0.5).exp_())
    return z, weight.div_(weight.sum(0))


def _inverse(x: Tensor, q: Tensor) -> Tensor:
    """The t at which log((1 + q eᵗ) / (1 + q e⁻ᵗ)) is 2 x."""
    return x + torch.asinh(x.sinh() / q)


def _two_bends(
    mean: Tensor, std: Tensor, nodes: int, transition: Transition, gap: Tensor
) -> tuple[Tensor, Tensor]:
    """Half of the nodes around each bend, for an integrand that is handed over in between.

    1 = χ + (1 − χ) with a smooth χ that falls from 1 at one bend to 0 at the other: each rule sees
    a function of one bend, its own.
    """
    one = transition._replace(gap=None)
    rules = [
        normal_rule(mean, std, -(-nodes // 2), one._replace(centre=transition.centre + side * gap))
        for side in (-1, 1)
    ]
    width = torch.maximum(gap / 3, 0 * gap + 2 * transition.width)
    shares = [
        p * 0.5 * torch.special.erfc(side * (mean - transition.centre + std * z) / width)
        for side, (z, p) in zip((1, -1), rules, strict=True)
    ]
    return torch.cat([z for z, _ in rules]), torch.cat(shares)


def gamma_rule(df: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes t = log λ and log-weights, [N, ...], for λ ~ Gamma(ν/2, ν/2).

    The density of t is exp(ν/2 (t − eᵗ)): a peak of width sqrt(2/ν) at 0, with a tail exp(ν t / 2)
    to the left. A trapezoid in v with t = ω sinh v resolves both.

    Args:
        df: ν, positive, [...].
    """
    excess = 2 * _DEPTH / df
    width = 3 * (2 / df).sqrt().clamp(max=1.0)
    left = excess + (2 * excess).sqrt() + _TAIL
    right = (excess + (2 * excess).sqrt()).log1p()
    low, high = -torch.asinh(left / width), torch.asinh(right / width)
    unit = torch.linspace(0, 1, _GAMMA_NODES, dtype=df.dtype, device=df.device)
    v = low + (high - low) * unit.reshape(-1, *[1] * df.ndim)
    t = width * v.sinh()
    log_weight = 0.5 * df * (t - t.expm1()) + v.cosh().log()
    return t, log_weight - log_weight.logsumexp(0)
