"""Exact moments for Poisson heads, by the moment generating function of a Gaussian.

For w ~ N(m, S), u = hᵀw ~ N(μ, v) and c = S h, weighing by exp(k u) multiplies by
M_k = exp(k μ + k² v / 2) and moves the mean of w to m + k c. With M = M_1, ε = exp(v) − 1,
a = m + c and r = M − y = E[exp(u)] − y, the gradient g = w (exp(u) − y) has

    E[g]   = m r + c M
    Cov[g] = S (r² + M² ε) + M² (ε (a + c)(a + c)ᵀ + c cᵀ) + M r (a cᵀ + c aᵀ),

in which no large numbers are subtracted (E[g gᵀ] − E[g] E[g]ᵀ would).
"""

from __future__ import annotations

from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.gradients._distribution import GradientDistribution, finish
from bayesagg_pyro.gradients._predictor import predictor_terms
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.heads import Poisson
from bayesagg_pyro.posteriors import GaussianFamily
from bayesagg_pyro.targets import Targets

__all__ = ["poisson_moments"]


@register(Poisson, GaussianFamily, embedded=True)
def poisson_moments(
    head: Poisson, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Exact mean and variance, O(tasks · B · d) once c is known; the full covariance on request."""
    dtype = linalg.head_dtype(features.device)
    posterior = posterior.to(features.device, dtype)
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior, features)
    v = variance_u[..., None]  # [T or 1, B, 1]
    rate = (u.mT[..., None] + 0.5 * v).exp()  # M, [T, B, 1]
    r = rate - targets.values.to(dtype).mT[..., None]
    scatter = v.expm1()  # ε
    a = m + c

    mean = m * r + c * rate
    square = rate.square()
    variance = s * (r.square() + square * scatter) + square * (scatter * (a + c).square())
    variance = variance + square * c.square() + 2 * rate * r * a * c

    def covariance() -> Tensor:
        S = covariance_of_w()
        ac = _outer(a, c)
        full = S * (r.square() + square * scatter)[..., None] + square[..., None] * _outer(c, c)
        full = full + (square * scatter)[..., None] * _outer(a + c, a + c)
        return full + (rate * r)[..., None] * (ac + ac.mT)

    return finish(head, posterior, features, targets, mean, variance, covariance)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x[..., :, None] * y[..., None, :]
