"""The marginal likelihood of a Gaussian head, as a function of prior variance and noise.

With w ~ N(m_b, γ S_b) and y = hᵀw + ε, ε ~ N(0, 1/β), the base S_b = C⁻ᵀ C⁻¹ is whitened away and
C⁻¹ (Σ h hᵀ) C⁻ᵀ = U diag(s) Uᵀ, z = Uᵀ C⁻¹ Σ h (y − hᵀ m_b). With κ = γ β, for one task,

    log p(y) = ½ (n log(β / 2π) − Σ_i log(1 + κ s_i) − β Q(κ)),
    Q(κ)     = R + Σ_i z_i² / (s_i (1 + κ s_i)),

where R is the residual sum of squares of least squares (Bishop, 2006, section 3.5,
https://www.microsoft.com/en-us/research/people/cmbishop/prml-book/, in the
eigenbasis; all terms but R are sums of positive numbers). One eigendecomposition serves every γ, β.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._optimise import search
from bayesagg_pyro.inference._gaussian_sums import GaussianStatistics
from bayesagg_pyro.posteriors import GaussianFamily

#: Share of Σ (y − hᵀm_b)² below which R is taken for rounding.
_FLOOR = 1e-12


@dataclass(frozen=True)
class GaussianEvidence:
    """log p(y | γ, β) per task.

    R is a difference of sums, so the noise is resolved down to 1e-6 of the targets' size only.

    Attributes:
        values: s, [tasks, P], 0 for directions without data.
        squares: z²/s, [tasks, P], 0 there.
        residual: R, [tasks].
        total: n, [tasks].
        size: Σ (y − hᵀ m_b)², [tasks].
    """

    values: Tensor
    squares: Tensor
    residual: Tensor
    total: Tensor
    size: Tensor

    @classmethod
    def of(cls, sums: GaussianStatistics, base: GaussianFamily) -> GaussianEvidence:
        """From sums over the data, and the prior that γ multiplies the covariance of."""
        base = base.to(sums.moment.device, sums.moment.dtype)
        whiten = base.to_gaussian().inverse_tril  # C⁻¹
        gram = whiten @ sums.gram @ whiten.mT
        values, vectors = torch.linalg.eigh(gram)
        explained = linalg.matvec(sums.gram, base.mean)
        z = linalg.matvec(vectors.mT @ whiten, sums.moment - explained)
        eps = torch.finfo(values.dtype).eps
        empty = values <= values[..., -1:] * values.shape[-1] * eps
        squares = torch.where(empty, 0.0, z.square() / torch.where(empty, 1.0, values))
        # Σ (y − hᵀm)² = Σ y² − Σ h y · m − Σ h (y − hᵀm) · m
        size = sums.square - ((2 * sums.moment - explained) * base.mean).sum(-1)
        residual = torch.maximum(size - squares.sum(-1), _FLOOR * size)
        values = torch.where(empty, 0.0, values).expand_as(z)
        return cls(values, squares, residual, sums.total, size)

    def log_evidence(self, log_variance: Tensor, log_precision: Tensor) -> Tensor:
        """log p(y | γ, β), [..., tasks]; differentiable.

        Args:
            log_variance: log γ, [..., tasks].
            log_precision: log β = −2 log τ, [..., tasks].
        """
        spread = (log_variance + log_precision).exp()[..., None] * self.values
        fit = self._fit(spread)
        normaliser = self.total * (log_precision - math.log(2 * math.pi))
        return 0.5 * (normaliser - spread.log1p().sum(-1) - log_precision.exp() * fit)

    def best_precision(self, log_variance: Tensor) -> Tensor:
        """log β that maximises the evidence at given log γ, [..., tasks]."""
        low, high = (bound.expand_as(log_variance) for bound in self._precisions())
        return search(lambda beta: self.log_evidence(log_variance, beta), low, high)

    def precision_at_ratio(self, log_ratio: Tensor) -> Tensor:
        """log β = log(n / Q(κ)) that maximises the evidence at given log κ = log γ β, [..., tasks].

        A task without data has 0.
        """
        fit = self._fit(log_ratio.exp()[..., None] * self.values)
        seen = (self.total > 0) & (fit > 0)
        return torch.where(seen, self.total / torch.where(seen, fit, 1.0), 1.0).log()

    def _fit(self, spread: Tensor) -> Tensor:
        """Q(κ) from κ s [..., tasks, P], [..., tasks]."""
        return self.residual + (self.squares / (1 + spread)).sum(-1)

    def _precisions(self) -> tuple[Tensor, Tensor]:
        """A range of log β that holds every maximum.

        At one, n − Σ κ s / (1 + κ s) = β Σ (y − hᵀm)², so 1/β ≥ R / n; and 1/β is at most an
        average of squared targets in the eigenbasis of the examples, so at most Σ (y − hᵀm_b)².
        """
        tiny = torch.finfo(self.total.dtype).tiny
        count, size = self.total.clamp(min=tiny), self.size.clamp(min=tiny)
        return -size.log(), (count / self.residual.clamp(min=tiny)).log()
