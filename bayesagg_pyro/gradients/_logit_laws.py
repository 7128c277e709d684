"""Joint laws of the logits of one example and of the weights given them; see `_conditional`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.heads import Categorical
from bayesagg_pyro.posteriors import DiagonalGaussian, GaussianFamily, KroneckerGaussian

__all__ = ["DenseLaw", "IndependentLaw", "dense_law", "independent", "independent_law"]


class DenseLaw(NamedTuple):
    """Logits with a full covariance; a = (M, G) holds the coefficients of φ."""

    mean: Tensor  #: E f, [tasks, b, C]
    scale: Tensor  #: R with Cov(f) = R Rᵀ, [tasks, b, C, C]
    weight_mean: Tensor  #: M, [tasks, C, d]
    gain: Tensor  #: G_kcd, [tasks, b, C (k), C (c), d]
    blocks: Tensor  #: Cov(W_cd, W_ed), [tasks, C, C, d]

    def logits(self, z: Tensor) -> Tensor:
        return self.mean[..., None, :] + z @ self.scale.mT

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        batch = self.mean.shape[1]
        # φ and its coefficients, class by class: (δ_c, δ_c z_1, ...) and (M_c, G_1c, ...).
        phi = (delta[..., None] * _with_one(z)[:, None]).flatten(-2)
        own = self.weight_mean[:, None, :, None].expand(-1, batch, -1, -1, -1)
        coefficients = torch.cat([own, self.gain.transpose(2, 3)], 3).flatten(2, 3)
        mean, variance = _linear_moments(phi, coefficients, degrees)
        outer = delta.mT @ delta / len(z)
        conditional = torch.einsum("tbce,tced->tbd", outer, self.blocks)
        # Σ_ce E[δ_c δ_e] Σ_k G_kcd G_ked
        conditional -= torch.einsum("tbce,tbkcd,tbked->tbd", outer, self.gain, self.gain)
        return mean, variance + conditional.clamp(min=0)


class IndependentLaw(NamedTuple):
    """Logits independent in the basis of the columns of `basis` (None: as they are)."""

    basis: Tensor | None  #: Q, [tasks, C, C]
    mean: Tensor  #: E f in that basis, [tasks, b, C]
    std: Tensor  #: [tasks, b, C]
    weight_mean: Tensor  #: M in that basis, [tasks, C, d]
    gain: Tensor  #: G_cd, [tasks, b, C, d]
    variance: Tensor  #: variances of the weights in that basis, [tasks, C, d]

    def logits(self, z: Tensor) -> Tensor:
        f = self.mean[..., None, :] + self.std[..., None, :] * self._turned(z)
        return f if self.basis is None else f @ self.basis.mT[:, None]

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        delta, z = self._turned(delta), self._turned(z)
        phi = torch.cat([delta, delta * z], -1)
        own = self.weight_mean[:, None].expand_as(self.gain)
        mean, variance = _linear_moments(phi, torch.cat([own, self.gain], 2), degrees)
        square = delta.square().mean(2)  # [tasks, b, C]
        left = (self.variance[:, None] - self.gain.square()).clamp_(min=0)
        return mean, variance + torch.einsum("tbc,tbcd->tbd", square, left)

    def _turned(self, values: Tensor) -> Tensor:
        """From classes to the basis, along the last axis: z itself is near the classes' logits."""
        return values if self.basis is None else values @ self.basis[:, None]


def _linear_moments(phi: Tensor, a: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of φ a over samples: φ [tasks, b, J, q], a [tasks, b, q, d]."""
    centre = phi.mean(2, keepdim=True)
    mean = (centre @ a)[..., 0, :]
    phi -= centre
    if a.shape[-1] > a.shape[-2]:  # fewer coefficients than features: d stays out of the samples
        covariance = phi.mT @ phi / degrees
        return mean, ((covariance @ a) * a).sum(-2).clamp(min=0)
    return mean, (phi @ a).square_().sum(2) / degrees


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z.new_ones(len(z), 1), z], 1)


def independent(posterior: GaussianFamily) -> bool:
    return isinstance(posterior, DiagonalGaussian | KroneckerGaussian)


def dense_law(head: Categorical, posterior: GaussianFamily, design: Tensor) -> DenseLaw:
    classes, d = head.classes, head.in_features
    weight_mean = posterior.mean.unflatten(-1, (classes, -1))
    s = posterior.covariance_matrix.unflatten(-1, (classes, -1)).unflatten(-3, (classes, -1))
    s = s.expand(head.tasks, -1, -1, -1, -1)  # [tasks, C, D, C, D]
    cross = torch.einsum("tcdke,be->tbkcd", s, design)  # Cov(W_cd, f_k)
    covariance = torch.einsum("tbkcd,bd->tbkc", cross, design)
    covariance = 0.5 * (covariance + covariance.mT)
    # An eigenvector basis needs no jitter: directions without variance (all of them for h = 0
    # without a bias) drop out of the term in z.
    values, vectors = torch.linalg.eigh(0.5 * (covariance + covariance.mT))
    certain = values <= values[..., -1:] * classes * torch.finfo(values.dtype).eps
    scale = (vectors * torch.where(certain, 0.0, values).sqrt()[..., None, :]) @ vectors.mT
    inverse = (vectors * torch.where(certain, 0.0, values.rsqrt())[..., None, :]) @ vectors.mT
    mean = torch.einsum("bd,tcd->tbc", design, weight_mean)
    # The first coordinates of Sobol points are the most even: they go to the likeliest classes.
    order = mean + covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    order = order.argsort(-1, descending=True)[..., None, :].expand_as(scale)
    scale, inverse = scale.gather(-1, order), inverse.gather(-1, order)
    gain = torch.einsum("tbkl,tbkcd->tblcd", inverse, cross[..., :d])
    return DenseLaw(
        mean,
        scale,
        weight_mean[..., :d],
        gain,
        s[..., :d, :, :d].diagonal(dim1=2, dim2=4),
    )


def independent_law(head: Categorical, posterior: GaussianFamily, design: Tensor) -> IndependentLaw:
    classes, d = head.classes, head.in_features
    weight_mean = posterior.mean.unflatten(-1, (classes, -1))
    if isinstance(posterior, KroneckerGaussian):
        q1, q2, values = posterior.eigen
        scaled = (design @ q2)[:, :, None] / values[:, None]  # [tasks, b, C, D]
        cross = scaled @ q2.mT[:, None]
        variance = values.reciprocal() @ q2.square().mT
        basis: Tensor | None = q1
        weight_mean = q1.mT @ weight_mean
    else:
        variance = posterior.variance.unflatten(-1, (classes, -1))
        cross = variance[:, None] * design[:, None]
        basis = None
    std = (cross @ design[..., None])[..., 0].clamp(min=0).sqrt()  # [tasks, b, C]
    tiny = math.sqrt(torch.finfo(std.dtype).tiny)
    gain = torch.where(std[..., None] > 0, cross[..., :d] / std[..., None].clamp(min=tiny), 0.0)
    return IndependentLaw(
        basis,
        torch.einsum("bd,tcd->tbc", design, weight_mean),
        std,
        weight_mean[..., :d],
        gain,
        variance[..., :d],
    )
