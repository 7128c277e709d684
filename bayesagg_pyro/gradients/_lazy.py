"""Distributions whose [tasks, B, d] moments are made only if somebody asks for them.

An aggregation with one weight per task, or per task and dimension, needs two things of a gradient
distribution: Σ_t α_t E[g_t] and the average variance. Where the covariance of a weight and the
predictor is a product, Cov(w_j, u_tb) = s_tj x_bj, both are matrix products of factors of size
[B, tasks], [tasks, d] and [B, d] (`Factors`), which is what very many tasks can afford.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution, MomentError

if TYPE_CHECKING:
    from typing_extensions import Self


class Factors(NamedTuple):
    """Moments of g = w f(u) for predictors u_tb ~ N(μ, v), in the terms of `_quadrature`.

    With k_tbj = s_tj x_bj / sqrt(v_tb); all in the precision of head algebra, and 0 where a target
    is not observed.
    """

    mean: Tensor  #: m, [tasks, d]
    cross: Tensor  #: s of Cov(w_tj, u_tb) = s_tj x_bj, [tasks or 1, d]
    base: Tensor  #: x, [B, d]
    weight_variance: Tensor  #: diagonal of S, [tasks or 1, d]
    f: Tensor  #: E f, [B, tasks]
    slope: Tensor  #: E[z f] / sqrt(v)
    square: Tensor  #: E f²
    var_f: Tensor  #: Var f
    mixed: Tensor  #: Cov(f, z f) / sqrt(v)
    curved: Tensor  #: (Var(z f) − E f²) / v

    def combined(self, by_task: Tensor, by_example: Tensor | None) -> Tensor:
        """Σ_t α_t E[g_t], [B, d].

        Args:
            by_task: factor of α, [tasks, 1 or d].
            by_example: another, [B, tasks]; None for 1.
        """
        f, slope = self.f, self.slope
        if by_example is not None:
            f, slope = f * by_example, slope * by_example
        return f @ (by_task * self.mean) + self.base * (slope @ (by_task * self.cross))

    def total_variance(self) -> Tensor:
        """Σ_b Var[g_tb], [tasks, d]."""
        m, s = self.mean, self.cross
        own = self.weight_variance * self.square.sum(0)[:, None]
        own = own + m.square() * self.var_f.sum(0)[:, None]
        own = own + 2 * m * s * (self.mixed.mT @ self.base)
        return own + s.square() * (self.curved.mT @ self.base.square())


class Lazy(GradientDistribution):
    """One whose moments, samples, covariances and errors are made when they are asked for.

    Subclasses add up what aggregation needs without them. `dataclasses.replace` makes them, and
    gives a plain distribution, as does the constructor.
    """

    _make: Callable[[], GradientDistribution]
    _like: Tensor

    # Made by `of`; `dataclasses.replace` calls the constructor with all moments.
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return GradientDistribution(*args, **kwargs)

    @classmethod
    def of(cls, make: Callable[[], GradientDistribution], **fields: Any) -> Self:
        """Nothing is made yet.

        Args:
            make: makes all that is not in `fields`.
            fields: those of a distribution that are known, and what the subclass needs.
        """
        lazy = object.__new__(cls)
        known: dict[str, Any] = {"observed": None, "groups": {}, "batch_loss_scale": None}
        lazy.__dict__.update(known | fields | {"_make": make})
        return lazy

    @classmethod
    def joined(
        cls, parts: Mapping[str, GradientDistribution], **fields: Any
    ) -> GradientDistribution:
        """Not made yet either."""
        shapes = [part.shape for part in parts.values()]
        return Joined.of(
            lambda: GradientDistribution.joined(parts, **fields),
            parts=parts,
            _like=next(iter(parts.values())).like,
            shape=torch.Size([sum(shape[0] for shape in shapes), *shapes[0][1:]]),
            **fields,
        )

    def changed(self, **fields: Any) -> GradientDistribution:
        """With another loss scale, or groups."""
        if not fields.keys() <= {"groups", "batch_loss_scale"}:
            return super().changed(**fields)
        return type(self).of(**{"make": self._make, **self._told, **fields})

    @property
    def _told(self) -> dict[str, Any]:
        made = ("_make", "_made", "mean", "variance", "covariance", "sampler", "error")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    @property
    def like(self) -> Tensor:
        return self._like

    @cached_property
    def _made(self) -> GradientDistribution:
        # As moments are made that are not late.
        with torch.no_grad(), torch.autocast(self.like.device.type, enabled=False):
            return self._make()

    @cached_property
    def mean(self) -> Tensor:
        return self._made.mean

    @cached_property
    def variance(self) -> Tensor:
        return self._made.variance

    @cached_property
    def covariance(self) -> Callable[[], Tensor] | None:
        return self._made.covariance

    @cached_property
    def sampler(self) -> Callable[[int, torch.Generator | None], Tensor] | None:
        return self._made.sampler

    @cached_property
    def error(self) -> Callable[[], MomentError] | None:
        return self._made.error


class Factored(Lazy):
    """One that holds `Factors`."""

    factors: Factors

    def combined(self, weights: Tensor) -> Tensor:
        by_task = bool(weights.shape[1] == 1)
        if not by_task and weights.shape[2] > 1:
            return super().combined(weights)
        scale = self.loss_scale()
        by_example = None if by_task else weights[..., 0].mT
        share = weights[:, 0] if by_task else torch.ones_like(weights[:, 0])
        if scale is not None:
            share = share * scale[:, 0]
        found = self.factors.combined(share.to(self.factors.mean.dtype), by_example)
        return found.to(self.like.dtype)

    def averaged(self) -> Tensor:
        total, dtype = self.factors.total_variance(), self.like.dtype
        least = min(torch.finfo(dtype).tiny, 2**-24)  # as in `finish`
        if self.observed is None:
            return (total / self.shape[1]).clamp_(min=least)[:, None].to(dtype)
        count = self.observed.sum(1, keepdim=True)
        average = (total / count.clamp(min=1)).clamp_(min=least)
        return torch.where(count > 0, average, 0.0)[:, None].to(dtype)


class Certain(Lazy):
    """One without variance, E[g_tb] = Σ_c f_tbc w_tc; factors are in the features' dtype."""

    slope: Tensor  #: f, the loss's derivatives by the outputs of a task, [B, tasks, C]
    weight: Tensor  #: w, [tasks, C, d]

    def combined(self, weights: Tensor) -> Tensor:
        by_task = bool(weights.shape[1] == 1)
        if not by_task and weights.shape[2] > 1:
            return super().combined(weights)
        scale = self.loss_scale()
        slope, rows = self.slope, self.weight
        if by_task:
            rows = rows * weights.to(rows.dtype)
        else:
            slope = slope * weights[..., 0].mT[..., None].to(slope.dtype)
        if scale is not None:
            rows = rows * scale.to(rows.dtype)
        return slope.flatten(1) @ rows.flatten(0, 1)

    def averaged(self) -> Tensor:
        return self.weight.new_zeros(self.tasks, 1, self.shape[2])


class Joined(Lazy):
    """Several, some of them not made, over the same features."""

    parts: Mapping[str, GradientDistribution]

    def combined(self, weights: Tensor) -> Tensor:
        own = ((part, weights[self.groups[name]]) for name, part in self.parts.items())
        first, *others = own
        total = first[0].combined(first[1])
        for part, alpha in others:
            total += part.combined(alpha)
        return total

    def averaged(self) -> Tensor:
        return torch.cat([part.averaged() for part in self.parts.values()])
