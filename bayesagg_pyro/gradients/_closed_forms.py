"""Exact moments of heads that have them, in which no large numbers are subtracted.

For one task w ~ N(m, S), c = S h, u = hᵀw and v = hᵀ S h. A bias takes part in c, u and v, but is
no feature: moments are over the first d weights. With an embedding, w, m, S and c are pulled back
to h (`_predictor`). Each costs O(tasks · B · d) once c is known; full covariances on request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import CACHE, fitting, slices
from bayesagg_pyro.gradients._distribution import GradientDistribution
from bayesagg_pyro.gradients._lazy import Lazy
from bayesagg_pyro.gradients._predictor import predictor_terms
from bayesagg_pyro.gradients._registry import register
from bayesagg_pyro.gradients._samples import finish
from bayesagg_pyro.heads import Gaussian, Poisson
from bayesagg_pyro.posteriors import Gaussian as DenseGaussian
from bayesagg_pyro.posteriors import GaussianFamily, NormalInverseGamma
from bayesagg_pyro.targets import Targets


@register(Gaussian, GaussianFamily, embedded=True)
def gaussian_moments(
    head: Gaussian, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Gaussian heads: the paper's eq. explicit_mom.

    Achituve et al. (2024), https://proceedings.mlr.press/v235/achituve24a.html. The gradient of
    (y − hᵀw)² with respect to h is g = 2 w (hᵀw − y), so with r = hᵀm − y

        E[g]   = 2 (m r + c)
        Cov[g] = 4 (S (r² + v) + m mᵀ v + r (m cᵀ + c mᵀ) + c cᵀ).
    """
    posterior = posterior.to(features.device, linalg.head_dtype(features.device))
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior, features)
    v = variance_u[..., None]  # [T or 1, B, 1]
    r = (u - targets.values.to(u.dtype)).mT[..., None]  # [T, B, 1]

    shape = head.tasks, *features.shape
    mean, variance = (torch.empty(shape, dtype=features.dtype, device=r.device) for _ in range(2))
    for rows in slices(len(features), fitting(head.tasks * features.shape[1], CACHE // 8)):
        own = (x if x.shape[1] == 1 else x[:, rows] for x in (m, s, c, r, v))
        mean[:, rows], variance[:, rows] = _gaussian(*own)

    def covariance() -> Tensor:
        S, mc = covariance_of_w(), _outer(m, c)
        full = S * (r.square() + v)[..., None] + _outer(m, m) * v[..., None]
        return 4 * (full + r[..., None] * (mc + mc.mT) + _outer(c, c))

    return finish(head, posterior, features, targets, mean, variance, covariance)


def _gaussian(m: Tensor, s: Tensor, c: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.addcmul(2 * c, 2 * m, r)
    # 4 (S_dd (r² + v) + m_d² v + (2 m_d r + c_d) c_d); the inner bracket is the mean less c_d.
    variance = (4 * s) * (r.square() + v)
    return mean, variance.addcmul_(4 * m.square(), v).addcmul_(mean - c, 4 * c)


class _Averages(Lazy):
    """Attributes are in the features' precision."""

    residual: Tensor  #: r, [tasks, B]; 0 where a target is not observed
    cross: Tensor  #: c, [tasks or 1, B, d]
    weight_mean: Tensor  #: m, [tasks, d]
    average: Tensor  #: of the variance, [tasks, 1, d]

    def combined(self, weights: Tensor) -> Tensor:
        if weights.shape[1] > 1:
            return super().combined(weights)
        scale = self.loss_scale()
        share = (weights if scale is None else weights * scale)[:, 0].to(self.cross.dtype)
        direction = self.residual.mT @ (share * self.weight_mean)
        seen = None if self.observed is None else self.observed.to(share.dtype)
        if len(self.cross) == 1:
            direction.addcmul_(self.cross[0], share.sum(0) if seen is None else seen.mT @ share)
        else:
            each = share[:, None] if seen is None else share[:, None] * seen[..., None]
            direction += (each * self.cross).sum(0)
        return direction.mul_(2)

    def averaged(self) -> Tensor:
        return self.average


def gaussian_averages(
    head: Gaussian, posterior: DenseGaussian, features: Tensor, targets: Targets
) -> _Averages:
    """What aggregation needs of linear heads in large batches, without [tasks, B, d] moments.

    In the terms of `gaussian_moments`, Σ_t α_t E[g_t] = 2 (Σ_t α_t m_t r_t + c Σ_t α_t), and the
    average of the variance over examples needs averages of r², v, r h and c² alone, E[r c] being
    S E[r h]. Examples have no weights.
    """
    exact, count, d = linalg.head_dtype(features.device), len(features), head.in_features
    posterior = posterior.to(features.device, exact)
    m, s = posterior.mean[:, :d], posterior.variance[:, :d]
    residual = features.new_empty(head.tasks, count)
    cross = features.new_empty(len(posterior.precision_tril), *features.shape)
    seen = None if targets.mask is None else targets.mask.mT  # [T, B]
    found = []
    # Some rows at a time: in the precision of head algebra all would be twice what stays of them.
    for rows in slices(count, fitting(head.weight_size, CACHE // 16)):
        design = head.design_matrix(features[rows])
        c, v = posterior.project(design, features.dtype)
        r = (design @ posterior.mean.mT - targets.values[rows].to(exact)).mT  # [T, B]
        c = c[..., :d]
        if seen is None:
            norms = torch.linalg.vector_norm(c, dim=1).square().to(exact)
        else:
            own = seen[:, rows]
            r, v = torch.where(own, r, 0.0), torch.where(own, v, 0.0)
            norms = (own[:, None].to(c.dtype) @ c.square())[:, 0].to(exact)
        residual[:, rows], cross[:, rows] = r, c
        each = r.square().sum(1, keepdim=True), r @ design, v.sum(1, keepdim=True), norms
        found.append(each)
    total = count if seen is None else seen.sum(1, keepdim=True).clamp(min=1)
    square, moment, v, size = (
        torch.stack(parts).sum(0) / total for parts in zip(*found, strict=True)
    )
    shift = posterior.solve(moment)[:, :d]  # E[r c]
    variance = 4 * (s * (square + v) + m.square() * v + 2 * m * shift + size)
    variance = variance.clamp_(min=min(torch.finfo(cross.dtype).tiny, 2**-24))  # as in `finish`
    if seen is not None:
        variance = torch.where(seen.any(1, keepdim=True), variance, 0.0)
    return _Averages.of(
        lambda: gaussian_moments(head, posterior, features, targets),
        residual=residual,
        cross=cross,
        weight_mean=m.to(cross.dtype),
        average=variance[:, None].to(cross.dtype),
        observed=seen,
        _like=cross,
        shape=torch.Size([head.tasks, *features.shape]),
    )


@register(Gaussian, NormalInverseGamma, embedded=True)
def integrated_noise_moments(
    head: Gaussian, posterior: NormalInverseGamma, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Gaussian heads whose noise is integrated out: a scale mixture.

    Given τ², w ~ N(m, τ² V), and with c and v for τ² = 1 the moments are those of
    `gaussian_moments`,

        E[g | τ²] = 2 (m r + τ² c),   Cov[g | τ²] = τ² A + τ⁴ B,
        A = 4 (V r² + m mᵀ v + r (m cᵀ + c mᵀ)),   B = 4 (V v + c cᵀ).

    The law of total covariance gives Cov[g] = E[τ²] A + E[τ⁴] B + Var[τ²] 4 c cᵀ.
    """
    posterior = posterior.to(features.device, linalg.head_dtype(features.device))
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior.unit, features)
    v = variance_u[..., None]
    r = (u - targets.values.to(u.dtype)).mT[..., None]
    first = posterior.noise_mean[:, None, None]  # E τ²
    spread = posterior.noise_variance[:, None, None]
    second = first.square() + spread  # E τ⁴

    mean = 2 * (m * r + first * c)
    linear = s * r.square() + m.square() * v + 2 * r * m * c
    variance = 4 * (first * linear + second * (s * v + c.square()) + spread * c.square())

    def covariance() -> Tensor:
        S, mc, cc = covariance_of_w(), _outer(m, c), _outer(c, c)
        r1, v1, e1, e2, e3 = (x[..., None] for x in (r, v, first, second, spread))
        linear = S * r1.square() + _outer(m, m) * v1 + r1 * (mc + mc.mT)
        return 4 * (e1 * linear + e2 * (S * v1 + cc) + e3 * cc)

    return finish(head, posterior, features, targets, mean, variance, covariance)


@register(Poisson, GaussianFamily, embedded=True)
def poisson_moments(
    head: Poisson, posterior: GaussianFamily, features: Tensor, targets: Targets
) -> GradientDistribution:
    """Poisson heads, by the moment generating function of a Gaussian.

    For u ~ N(μ, v), weighing by exp(k u) multiplies by M_k = exp(k μ + k² v / 2) and moves the mean
    of w to m + k c. With M = M_1, ε = exp(v) − 1, a = m + c and r = M − y = E[exp(u)] − y, the
    gradient g = w (exp(u) − y) has

        E[g]   = m r + c M
        Cov[g] = S (r² + M² ε) + M² (ε (a + c)(a + c)ᵀ + c cᵀ) + M r (a cᵀ + c aᵀ).
    """
    posterior = posterior.to(features.device, linalg.head_dtype(features.device))
    m, s, c, u, variance_u, covariance_of_w = predictor_terms(head, posterior, features)
    v = variance_u[..., None]
    rate = (u.mT[..., None] + 0.5 * v).exp()  # M, [T, B, 1]
    r = rate - targets.values.to(u.dtype).mT[..., None]
    scatter = v.expm1()  # ε
    a = m + c

    mean = m * r + c * rate
    square = rate.square()
    variance = s * (r.square() + square * scatter) + square * (scatter * (a + c).square())
    variance = variance + square * c.square() + 2 * rate * r * a * c

    def covariance() -> Tensor:
        S, ac = covariance_of_w(), _outer(a, c)
        full = S * (r.square() + square * scatter)[..., None] + square[..., None] * _outer(c, c)
        full = full + (square * scatter)[..., None] * _outer(a + c, a + c)
        return full + (rate * r)[..., None] * (ac + ac.mT)

    return finish(head, posterior, features, targets, mean, variance, covariance)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x[..., :, None] * y[..., None, :]
