"""Exact moments for Gaussian heads whose noise is integrated out: a scale mixture.

Given τ², w ~ N(m, τ² V), and with r = hᵀm − y, c = V h, v = hᵀ V h (for τ² = 1) the moments of the
gradient are those of a Gaussian posterior (`gaussian_moments`),

    E[g | τ²] = 2 (m r + τ² c),   Cov[g | τ²] = τ² A + τ⁴ B,
    A = 4 (V r² + m mᵀ v + r (m cᵀ + c mᵀ)),   B = 4 (V v + c cᵀ).

The law of total covariance gives Cov[g] = E[τ²] A + E[τ⁴] B + Var[τ²] 4 c cᵀ.
"""

from __future__ import annotations

from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients._distribution import GradientDistribution, finish
from bayesagg_pyro.gradients._predictor import predictor_terms
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.posteriors import NormalInverseGamma
from bayesagg_pyro.targets import Targets

__all__ = ["integrated_noise_moments"]


@register(Gaussian, NormalInverseGamma, embedded=True)
def integrated_noise_moments(
    head: Gaussian, posterior: NormalInverseGamma, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Exact mean and variance, O(tasks · B · d); the full covariance on request."""
    dtype = linalg.head_dtype(features.device)
    posterior = posterior.to(features.device, dtype)
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior.unit, features)
    v = variance_u[..., None]  # [T or 1, B, 1]
    r = (u - targets.values.to(dtype)).mT[..., None]  # [T, B, 1]
    first = posterior.noise_mean[:, None, None]  # E τ²
    spread = posterior.noise_variance[:, None, None]
    second = first.square() + spread  # E τ⁴

    mean = 2 * (m * r + first * c)
    linear = s * r.square() + m.square() * v + 2 * r * m * c
    variance = 4 * (first * linear + second * (s * v + c.square()) + spread * c.square())

    def covariance() -> Tensor:
        S = covariance_of_w()
        mc = m[..., :, None] * c[..., None, :]
        cc = c[..., :, None] * c[..., None, :]
        r2, v2 = r.square()[..., None], v[..., None]
        linear = S * r2 + (m[..., :, None] * m[..., None, :]) * v2 + r[..., None] * (mc + mc.mT)
        e1, e2, e3 = first[..., None], second[..., None], spread[..., None]
        return 4 * (e1 * linear + e2 * (S * v2 + cc) + e3 * cc)

    return finish(head, posterior, features, targets, mean, variance, covariance)
