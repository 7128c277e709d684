"""A Gaussian whose covariance is diagonal plus low rank: correlations where P × P is too much."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import lasting_property
from bayesagg_pyro.errors import NumericalError, ShapeError
from bayesagg_pyro.posteriors._family import GaussianFamily, Projection
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Shape


class LowRankGaussian(GaussianFamily):
    """N(m, diag(δ) + F Fᵀ) for each task; Λ by Woodbury's identity, with an R × R factor.

    Ong, Nott and Smith (2018), https://arxiv.org/abs/1701.03208.

    Args:
        mean: [tasks, P].
        factor: F, [tasks, P, R].
        diagonal: δ, [tasks, P], positive.
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the variances tell by themselves if None.

    Raises:
        ShapeError: if the three do not fit.
        NumericalError: on the CPU, if an entry of δ is not positive.
    """

    arguments = ("mean", "factor", "diagonal")

    def __init__(
        self,
        mean: Tensor,
        factor: Tensor,
        diagonal: Tensor,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        if factor.ndim != 3 or factor.shape[:2] != mean.shape or diagonal.shape != mean.shape:
            raise ShapeError(
                f"a mean of shape {list(mean.shape)} needs a diagonal of that shape and a factor "
                f"{[*mean.shape, 'rank']}, not {list(diagonal.shape)} and {list(factor.shape)}"
            )
        super().__init__(mean, outputs_per_task=outputs_per_task)
        if diagonal.device.type == "cpu" and not (diagonal > 0).all():
            raise NumericalError(
                f"a diagonal of variances must be positive, but its smallest entry is "
                f"{diagonal.min():.3g}"
            )
        self.factor = factor
        self.diagonal = diagonal
        if info is None:
            variance = self.variance
            # The diagonal of a symmetric matrix lies within the range of its eigenvalues.
            info = Info(variance.new_zeros(len(variance)), variance.amax(-1) / variance.amin(-1))
        self.info: Info = info

    @property
    def variance(self) -> Tensor:
        """Marginal variances, [tasks, P]."""
        return self.diagonal + self.factor.square().sum(-1)

    @lasting_property
    def capacitance_tril(self) -> Tensor:
        """Cholesky factor of I + Fᵀ δ⁻¹ F, [tasks, R, R]."""
        inner = self.factor.mT @ (self.factor / self.diagonal[..., None])
        eye = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        return linalg.cholesky(eye + inner, what="capacitance of a low-rank posterior").tril

    def precision_times(self, vectors: Tensor) -> Tensor:
        scaled = (vectors / self.diagonal)[..., None]
        inner = torch.cholesky_solve(self.factor.mT @ scaled, self.capacitance_tril)
        return (scaled - (self.factor @ inner) / self.diagonal[..., None])[..., 0]

    def solve(self, vectors: Tensor) -> Tensor:
        column = vectors[..., None]
        return self.diagonal * vectors + (self.factor @ (self.factor.mT @ column))[..., 0]

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> Projection:
        """Moments of hᵀ w; the variance is a sum of squares."""
        inner = design @ self.factor  # [tasks, B, R]
        cross = design * self.diagonal[:, None] + inner @ self.factor.mT
        variance = self.diagonal @ design.square().mT + inner.square().sum(-1)
        return Projection(cross.to(dtype), variance)

    def to_gaussian(self) -> Gaussian:
        scaled = self.factor / self.diagonal[..., None]
        whitened = torch.linalg.solve_triangular(self.capacitance_tril, scaled.mT, upper=False)
        precision = torch.diag_embed(self.diagonal.reciprocal()) - whitened.mT @ whitened
        return self._as_dense(Gaussian(self._mean, precision))

    def rsample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weights m + sqrt(δ) ε + F ε', [*sample_shape, tasks, P]."""
        own = self._standard_normal(sample_shape, generator)
        shared = torch.randn(
            (*sample_shape, len(self._mean), self.factor.shape[-1]),
            generator=generator,
            dtype=own.dtype,
            device=own.device,
        )
        common = torch.einsum("tpr,...tr->...tp", self.factor, shared)
        return self._mean + self.diagonal.sqrt() * own + common

    @property
    def precision_log_det(self) -> Tensor:
        """The log-determinant of Λ, [tasks]."""
        inner = self.capacitance_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -2 * inner - self.diagonal.log().sum(-1)

    @lasting_property
    def _directions(self) -> tuple[Tensor, Tensor]:
        """Left singular vectors and singular values of δ^(−1/2) F, [tasks, P, R] and [tasks, R]."""
        scaled = self.factor * self.diagonal.rsqrt()[..., None]
        u, s, _ = torch.linalg.svd(scaled, full_matrices=False)
        return u, s

    def mahalanobis(self, vectors: Tensor) -> Tensor:
        """Squared lengths vᵀ Λ v of [..., tasks, P], [..., tasks].

        With δ^(−1/2) F = U s Vᵀ it is what U leaves of δ^(−1/2) v, and what is along U over
        1 + s²: squares, where Woodbury's identity subtracts numbers that may be far larger.
        """
        u, s = self._directions
        scaled = (vectors * self.diagonal.rsqrt())[..., None]
        along = u.mT @ scaled
        across = scaled - u @ along
        shrunk = along[..., 0].square() / (1 + s.square())
        return across[..., 0].square().sum(-1) + shrunk.sum(-1)

    def sound(self) -> bool:
        """Whether all own variances are positive."""
        return super().sound() and bool((self.diagonal > 0).all())
