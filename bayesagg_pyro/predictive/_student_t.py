"""Student's t noise on top of Gaussian weights, as a mixture of normals over the noise's precision.

τ t_ν is N(0, τ² / λ) with λ ~ Gamma(ν/2, ν/2), so y ~ N(hᵀm, hᵀSh + τ²/λ): smooth in y however
narrow the noise is beside the posterior, which a mixture over u would not be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.heads import StudentT
from bayesagg_pyro.predictive._mixture import NormalMixture

_NODES = 128
#: The density of log λ is negligible where it is below exp(−_DEPTH) of its peak ...
_DEPTH = 40.0
#: ... but observations far out ask for λ as small as exp(−_TAIL), whatever ν is.
_TAIL = 30.0


def student_t(head: StudentT, mean: Tensor, variance: Tensor) -> NormalMixture:
    """The predictive for predictors of that mean and variance, [B, tasks]."""
    df, scale = head.df.to(mean), head.scale.to(mean)
    log_precision, log_weight = _gamma_rule(df.expand(torch.broadcast_shapes(df.shape, (1,))))
    noise = scale.square() * (-log_precision).exp()  # [N, tasks or 1]
    noise_variance = torch.where(df > 2, df / (df - 2), torch.where(df > 1, torch.inf, torch.nan))
    aleatoric = (scale.square() * noise_variance).expand_as(mean)
    centre = torch.where(df > 1, mean, torch.nan)
    return NormalMixture(mean, variance, noise[:, None], log_weight[:, None], aleatoric, centre)


def _gamma_rule(df: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes t = log λ and log-weights, [N, tasks or 1], for λ ~ Gamma(ν/2, ν/2).

    The density of t is exp(ν/2 (t − eᵗ)): a peak of width sqrt(2/ν) at 0, with a tail exp(ν t / 2)
    to the left. A trapezoid in v with t = ω sinh v resolves both.
    """
    excess = 2 * _DEPTH / df
    width = 3 * (2 / df).sqrt().clamp(max=1.0)
    left = excess + (2 * excess).sqrt() + _TAIL
    right = (excess + (2 * excess).sqrt()).log1p()
    low, high = -torch.asinh(left / width), torch.asinh(right / width)
    unit = torch.linspace(0, 1, _NODES, dtype=df.dtype, device=df.device)[:, None]
    v = low + (high - low) * unit
    t = width * v.sinh()
    log_weight = 0.5 * df * (t - t.expm1()) + v.cosh().log()
    return t, log_weight - log_weight.logsumexp(0)
