"""Distributions as maps of a standard normal: x = T(w), w ~ N(0, I), exactly."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from bayesagg_pyro.heads._cumulative import upper_tail


def from_normal(fn: Any, w: Tensor) -> Any:
    """T(w) with T(w) ~ fn where w is standard normal; smooth, and one-to-one.

    Args:
        fn: a torch or Pyro distribution.
        w: of `fn.shape()`.

    Raises:
        NotImplementedError: if no such map is known for the distribution.
    """
    if isinstance(fn, td.Independent) or type(fn).__name__ in ("MaskedDistribution",):
        return from_normal(fn.base_dist, w)
    if isinstance(fn, td.Normal):
        return fn.loc + fn.scale * w
    if isinstance(fn, td.MultivariateNormal | td.LowRankMultivariateNormal):
        return fn.loc + (fn.scale_tril @ w[..., None])[..., 0]
    if isinstance(fn, td.HalfNormal):  # tails by the complement, which keeps its digits
        return -fn.scale * torch.special.ndtri(0.5 * upper_tail(w))
    if isinstance(fn, td.HalfCauchy):
        return fn.scale / torch.tan(0.5 * math.pi * upper_tail(w))
    if isinstance(fn, td.Exponential):
        return -torch.special.log_ndtr(-w) / fn.rate
    if isinstance(fn, td.TransformedDistribution):
        base: Any = fn.base_dist
        if base.batch_shape + base.event_shape != w.shape or not all(
            t.bijective for t in fn.transforms
        ):
            raise NotImplementedError
        x = from_normal(base, w)
        for transform in fn.transforms:
            x = transform(x)
        return x
    # Where Φ(w) rounds to 0 or 1 the quantile would be infinite.
    eps = torch.finfo(w.dtype).eps
    return fn.icdf(torch.special.ndtr(w).clamp(eps, 1 - eps))
