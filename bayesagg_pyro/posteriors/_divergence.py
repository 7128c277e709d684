"""Kullback-Leibler divergences between Gaussians over the weights of one head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import register_kl

from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors._diagonal import DiagonalGaussian
from bayesagg_pyro.posteriors._family import GaussianFamily
from bayesagg_pyro.posteriors._kronecker import KroneckerGaussian
from bayesagg_pyro.posteriors._low_rank import LowRankGaussian


def gaussian_divergence(p: GaussianFamily, q: GaussianFamily) -> Tensor:
    """KL(p ‖ q) in nats for each task, [tasks]; `torch.distributions.kl_divergence` calls this.

    (tr Λ_q S_p − P + log |Λ_p| − log |Λ_q| + |m_p − m_q|²_Λq) / 2 (Rasmussen and Williams, 2006,
    equation A.23, https://gaussianprocess.org/gpml/). Two Kronecker products, or anything beside a
    diagonal, need no P × P matrix.

    Raises:
        ShapeError: if the two are over the weights of different heads.
    """
    if p.batch_shape != q.batch_shape or p.event_shape != q.event_shape:
        shapes = [[*one.batch_shape, *one.event_shape] for one in (p, q)]
        raise ShapeError(f"distributions over weights {shapes[0]} and {shapes[1]} do not compare")
    dtype = torch.promote_types(p.mean.dtype, q.mean.dtype)
    p, q = p.to(dtype=dtype), q.to(p.mean.device, dtype)
    return 0.5 * (_spread(p, q) + q.mahalanobis(p.mean - q.mean))


def _spread(p: GaussianFamily, q: GaussianFamily) -> Tensor:
    """Excess tr Λ_q S_p − P + log |Λ_p| − log |Λ_q|, at least 0, [tasks]."""
    if isinstance(q, DiagonalGaussian):
        trace = (q.precision * p.variance).sum(-1)
    elif isinstance(p, KroneckerGaussian) and isinstance(q, KroneckerGaussian):
        left = (q.eigen.outputs.mT @ p.eigen.outputs).square()
        right = (q.eigen.inputs.mT @ p.eigen.inputs).square()
        turned = left @ p.eigen.values.reciprocal() @ right.mT  # S_p's diagonal in q's eigenbasis
        trace = (q.eigen.values * turned).sum((-2, -1))
    elif isinstance(p, LowRankGaussian):
        root = torch.cat([torch.diag_embed(p.diagonal.sqrt()), p.factor], -1)
        trace = q.mahalanobis(root.movedim(-1, 0)).sum(0)
    elif isinstance(q, LowRankGaussian):
        rows = p.to_gaussian().inverse_tril.expand(p.tasks, -1, -1)
        trace = q.mahalanobis(rows.transpose(0, 1)).sum(0)
    else:
        return _dense_spread(p, q)
    size = p.mean.shape[-1]
    return (trace - size + p.precision_log_det - q.precision_log_det).clamp(min=0)


register_kl(GaussianFamily, GaussianFamily)(gaussian_divergence)


def _dense_spread(p: GaussianFamily, q: GaussianFamily) -> Tensor:
    """As `_spread`, through A = L_p⁻¹ L_q: |A|² − P − 2 Σ log A_ii, whose terms are positive.

    So nearly equal distributions keep their digits.
    """
    ratio: Tensor = torch.linalg.solve_triangular(
        p.to_gaussian().precision_tril, q.to_gaussian().precision_tril, upper=False
    )
    a = ratio.diagonal(dim1=-2, dim2=-1)
    near = (a > 0.5) & (a < 2)
    step, far = torch.where(near, a - 1, 0.0), torch.where(near, 1.0, a)
    along = torch.where(
        near,
        step.square() + 2 * (step - step.log1p()),
        far.square() - 1 - 2 * far.log(),
    )
    across = ratio.tril(-1).square().sum((-2, -1))
    spread: Tensor = along.sum(-1) + across
    return spread.expand(p.tasks)
