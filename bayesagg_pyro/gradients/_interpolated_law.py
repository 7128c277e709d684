"""Logits of very many classes under a Kronecker posterior, by interpolation in its eigenvalues.

In the eigenbasis Q₁ of the factor over classes, the weights of row k have the variances
V_kD = 1 / (λ_k μ_D / n + δ), and the logits the standard deviations s_k = sqrt(Σ_D a_D² V_kD): both
are smooth functions of λ_k alone. Known at R nodes, they are so everywhere,

    s_k ≈ Σ_r φ_r(k) s_r,     V_kD / s_k ≈ Σ_r φ_r(k) V_rD / s_r,

and the products with Q₁, of C² numbers for each point, are made once, for Q₁ (φ_r ∘ Q₁ᵀ z), in
place of once for each example. Nodes are Chebyshev's in the logarithm of the largest precision of
a row: for rows of weights whose precisions differ by up to 1e6, interpolation is right to 1e-4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from bayesagg_pyro.gradients._logit_laws import Law, shared_product
from bayesagg_pyro.heads import Categorical
from bayesagg_pyro.linalg import reciprocal
from bayesagg_pyro.posteriors import KroneckerGaussian

#: R.
_NODES = 24


@dataclass(frozen=True)
class InterpolatedLaw(Law):
    """Weights that are independent in a basis Q₁ ⊗ Q₂, their variances known at nodes.

    Attributes:
        basis: Q₁, [tasks, C, C].
        inputs: Q₂, its rows of features, [tasks or 1, d, D].
        coordinates: Q₂ᵀ h, [tasks or 1, b, D].
        shares: φ, [tasks, C, R].
        node_variance: V at the nodes, [tasks, R, D].
        node_std: s at the nodes, [tasks, b, R].
    """

    basis: Tensor
    inputs: Tensor
    coordinates: Tensor
    shares: Tensor
    node_variance: Tensor
    node_std: Tensor
    #: Q₁ (φ_r ∘ Q₁ᵀ z), [tasks, R, C, J], by J.
    noises: dict[int, Tensor] = field(default_factory=dict)

    per_example: ClassVar[tuple[str, ...]] = ("logit_mean", "coordinates", "node_std")

    def spread(self) -> Tensor:
        variance = self.node_std.square() @ self.shares.mT
        centred = self.basis - self.basis.mean(-2, keepdim=True)
        widest: Tensor = (variance @ centred.square().mT).amax(-1).clamp(min=0).sqrt()
        return widest

    def probabilities(self, z: Tensor) -> Tensor:
        spread = self.node_std @ self._mixed(z).flatten(2)
        found: Tensor = spread.unflatten(2, z.shape).add_(self.logit_mean[..., None]).softmax(2)
        return found

    def mean(self, delta: Tensor, z: Tensor) -> Tensor:
        own = delta.flatten(2) @ self._mixed(z).flatten(2).mT / z.shape[1]  # [tasks, b, R]
        centre = delta.mean(-1) @ self.weight_mean
        pulled = (own * reciprocal(self.node_std)) @ self.node_variance
        return centre + pulled.mul_(self.coordinates) @ self.inputs.mT

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        # Point by point, [tasks, J, b, C] @ [tasks, J, C, R].
        own = delta.permute(0, 3, 1, 2) @ self._mixed(z).permute(0, 3, 2, 1)
        own = own.transpose(1, 2) * reciprocal(self.node_std)[:, :, None]  # [tasks, b, J, R]
        samples = shared_product(own, self.node_variance).mul_(self.coordinates[:, :, None])
        samples = shared_product(samples, self.inputs.mT)  # E[g | z], [tasks, b, J, d]
        samples += shared_product(delta.mT, self.weight_mean)
        mean = samples.mean(2)
        between = samples.sub_(mean[:, :, None]).square_().sum(2) / degrees
        turned = shared_product(delta.mT, self.basis)
        square = turned.square_().mean(2)  # E[δ_k²], [tasks, b, C]
        square = square @ self.shares
        gain = self.node_variance[:, None] * self.coordinates[:, :, None]  # [tasks, b, R, D]
        gain = shared_product(gain, self.inputs.mT).mul_(reciprocal(self.node_std)[..., None])
        left = (square @ self.node_variance) @ self.inputs.square().mT
        left -= (square[:, :, None] @ gain.square_())[:, :, 0]
        return mean, between.add_(left.clamp_(min=0))

    def _mixed(self, z: Tensor) -> Tensor:
        points = z.shape[1]
        if points not in self.noises:
            turned = (self.basis.mT @ z)[:, None]  # z itself is near the classes
            shared = self.shares.mT[..., None] * turned  # [tasks, R, C, J]
            self.noises[points] = self.basis[:, None] @ shared
        return self.noises[points]


def interpolated_law(
    head: Categorical, posterior: KroneckerGaussian, design: Tensor
) -> InterpolatedLaw:
    """The law for some rows of a design matrix, in its dtype; nodes in that of the posterior."""
    d, dtype = head.in_features, design.dtype
    mean = posterior.mean.unflatten(-1, (head.classes, -1)).to(dtype)
    basis, turn, values = posterior.eigen
    # Eigenvalues of both factors ascend, so the last column is the largest, and all are affine
    # functions of λ_k, which is linear in it.
    largest = values[..., -1].log()  # [tasks, C]
    low, high = largest[:, :1], largest[:, -1:]
    angles = torch.arange(_NODES, dtype=values.dtype, device=values.device) * math.pi
    nodes = (angles / (_NODES - 1)).cos()
    width = (high - low).clamp(min=torch.finfo(values.dtype).eps)
    place = (2 * (largest - low) / width - 1).clamp(-1, 1)
    grown = torch.expm1((nodes + 1) / 2 * (high - low))
    grown = grown / torch.expm1(high - low).clamp(min=torch.finfo(values.dtype).eps)
    least = values[:, :1]
    precision = least + grown[..., None] * (values[:, -1:] - least)  # [tasks, R, D]
    variance, turn = precision.reciprocal().to(dtype), turn.to(dtype)
    coordinates = design @ turn
    return InterpolatedLaw(
        (design @ mean.mT).expand(head.tasks, -1, -1),
        mean[..., :d],
        basis.to(dtype),
        turn[:, :d],
        coordinates,
        _lagrange(nodes, place).to(dtype),
        variance,
        (coordinates.square() @ variance.mT).sqrt(),
    )


def _lagrange(nodes: Tensor, places: Tensor) -> Tensor:
    """Barycentric weights of Chebyshev's nodes of the second kind, [..., K] to [..., K, R].

    Berrut and Trefethen (2004), https://doi.org/10.1137/S0036144502417715.
    """
    signs = torch.ones_like(nodes)
    signs[1::2] = -1
    signs[[0, -1]] *= 0.5
    apart = places[..., None] - nodes
    there = apart == 0
    ratios = signs / torch.where(there, 1.0, apart)
    found = ratios / ratios.sum(-1, keepdim=True)
    return torch.where(there.any(-1, keepdim=True), there.to(found.dtype), found)
