"""Exact moments for Gaussian heads: the paper's eq. explicit_mom, free of cancellation.

For one task with w ~ N(m, S), r = hᵀm − y, c = S h and v = hᵀ S h, the gradient of (y − hᵀw)² with
respect to h is g = 2 w (hᵀw − y), and

    E[g]   = 2 (m r + c)
    Cov[g] = 4 (S (r² + v) + m mᵀ v + r (m cᵀ + c mᵀ) + c cᵀ).

The bias takes part in r, c and v, but is no feature: moments are over the first d weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._finish import finish
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["gaussian_moments"]


@register(Gaussian, GaussianFamily)
def gaussian_moments(
    head: Gaussian, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Exact mean and variance, O(tasks · B · d) once c is known; the full covariance on request."""
    design = head.exact(features)  # [B, D]
    posterior = posterior.to(design.device, design.dtype)
    d = head.in_features
    cross, variance_u = posterior.project(design)
    c, v = cross[..., :d], variance_u[..., None]  # [T or 1, B, d], [T or 1, B, 1]
    m = posterior.mean[:, None, :d]
    s = posterior.variance[: c.shape[0], None, :d]  # [T or 1, 1, d]
    residual = design @ posterior.mean.mT - targets.values.to(design.dtype)
    r = residual.mT[..., None]  # [T, B, 1]

    mean = torch.addcmul(2 * c, 2 * m, r)
    # 4 (S_dd (r² + v) + m_d² v + (2 m_d r + c_d) c_d); the inner bracket is the mean less c_d.
    variance = (4 * s) * (r.square() + v)
    variance = variance.addcmul_(4 * m.square(), v).addcmul_(mean - c, 4 * c).clamp_(min=0)

    def covariance() -> Tensor:
        S = posterior.covariance_matrix[:, None, :d, :d]
        mc = m[..., :, None] * c[..., None, :]
        full = S * (r.square() + v)[..., None] + (m[..., :, None] * m[..., None, :]) * v[..., None]
        full = full + r[..., None] * (mc + mc.mT) + c[..., :, None] * c[..., None, :]
        return 4 * full

    return finish(head, posterior, features, targets, mean, variance, covariance)
