"""Exact moments for Gaussian heads: the paper's eq. explicit_mom, free of cancellation.

Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html.

For one task with w ~ N(m, S), r = hᵀm − y, c = S h and v = hᵀ S h, the gradient of (y − hᵀw)² with
respect to h is g = 2 w (hᵀw − y), and

    E[g]   = 2 (m r + c)
    Cov[g] = 4 (S (r² + v) + m mᵀ v + r (m cᵀ + c mᵀ) + c cᵀ).

The bias takes part in r, c and v, but is no feature: moments are over the first d weights. With an
embedding, w, m, S and c are pulled back to h (`_predictor`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro.gradients._distribution import GradientDistribution, finish
from bayesagg_pyro.gradients._predictor import predictor_terms
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["gaussian_moments"]


@register(Gaussian, GaussianFamily, embedded=True)
def gaussian_moments(
    head: Gaussian, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Exact mean and variance, O(tasks · B · d) once c is known; the full covariance on request."""
    dtype = linalg.head_dtype(features.device)
    posterior = posterior.to(features.device, dtype)
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior, features)
    v = variance_u[..., None]  # [T or 1, B, 1]
    r = (u - targets.values.to(dtype)).mT[..., None]  # [T, B, 1]

    shape = head.tasks, *features.shape
    mean, variance = (torch.empty(shape, dtype=features.dtype, device=r.device) for _ in range(2))
    for rows in slices(len(features), fitting(head.tasks * features.shape[1], CACHE // 8)):
        own = (x if x.shape[1] == 1 else x[:, rows] for x in (m, s, c, r, v))
        mean[:, rows], variance[:, rows] = _moments(*own)

    def covariance() -> Tensor:
        S = covariance_of_w()
        mc = m[..., :, None] * c[..., None, :]
        full = S * (r.square() + v)[..., None] + (m[..., :, None] * m[..., None, :]) * v[..., None]
        full = full + r[..., None] * (mc + mc.mT) + c[..., :, None] * c[..., None, :]
        return 4 * full

    return finish(head, posterior, features, targets, mean, variance, covariance)


def _moments(m: Tensor, s: Tensor, c: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.addcmul(2 * c, 2 * m, r)
    # 4 (S_dd (r² + v) + m_d² v + (2 m_d r + c_d) c_d); the inner bracket is the mean less c_d.
    variance = (4 * s) * (r.square() + v)
    return mean, variance.addcmul_(4 * m.square(), v).addcmul_(mean - c, 4 * c)
