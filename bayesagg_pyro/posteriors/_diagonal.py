"""A Gaussian whose weights are independent: a prior, or the cheapest of approximations."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import NumericalError, ShapeError
from bayesagg_pyro.posteriors._family import Factors, GaussianFamily, Projection
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Shape


class DiagonalGaussian(GaussianFamily):
    """N(m, diag(λ)⁻¹) for each task.

    Args:
        mean: [tasks, P].
        precision: λ, [tasks or 1, P], positive.
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the precisions tell by themselves if None.

    Raises:
        ShapeError: if the two do not fit.
        NumericalError: on the CPU, if a precision is not positive.
    """

    arguments = ("mean", "precision")

    def __init__(
        self,
        mean: Tensor,
        precision: Tensor,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        tasks, size = mean.shape
        if precision.shape not in ((1, size), (tasks, size)):
            raise ShapeError(
                f"a mean of shape {list(mean.shape)} needs precisions of shape "
                f"[1 or {tasks}, {size}], not {list(precision.shape)}"
            )
        super().__init__(mean, outputs_per_task=outputs_per_task)
        if precision.device.type == "cpu" and not (precision > 0).all():
            raise NumericalError(
                f"a diagonal precision must be positive, but its smallest entry is "
                f"{precision.min():.3g}; strengthen the prior"
            )
        self.precision = precision
        if info is None:
            jitter = precision.new_zeros(precision.shape[0])
            info = Info(jitter, precision.amax(-1) / precision.amin(-1))
        self.info: Info = info

    @property
    def variance(self) -> Tensor:
        """Marginal variances 1/λ, [tasks, P]."""
        return self.precision.reciprocal().expand(self._mean.shape)

    def precision_times(self, vectors: Tensor) -> Tensor:
        return self.precision * vectors

    def solve(self, vectors: Tensor) -> Tensor:
        return vectors / self.precision

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> Projection:
        """Moments of hᵀ w."""
        variance = design.square() @ self.precision.reciprocal().mT
        return Projection(design.to(dtype) / self.precision[:, None].to(dtype), variance.mT)

    def factors(self, design: Tensor) -> Factors:
        """S is diagonal: Cov(w_p, u) = S_pp h_p."""
        cross = self.precision.reciprocal()
        return Factors(cross, design, (design.square() @ cross.mT).mT)

    def to_gaussian(self) -> Gaussian:
        dense = Gaussian(
            self._mean,
            torch.diag_embed(self.precision),
            precision_tril=torch.diag_embed(self.precision.sqrt()),
        )
        return self._as_dense(dense)

    def rsample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weights m + ε / sqrt(λ), [*sample_shape, tasks, P]."""
        return self._mean + self._standard_normal(sample_shape, generator) * self.precision.rsqrt()

    @property
    def precision_log_det(self) -> Tensor:
        return self.precision.log().sum(-1)

    def mahalanobis(self, vectors: Tensor) -> Tensor:
        """Squared lengths Σ λ v² of [..., tasks, P], [..., tasks]."""
        return (vectors.square() * self.precision).sum(-1)

    def sound(self) -> bool:
        """Whether all precisions are positive."""
        return super().sound() and bool((self.precision > 0).all())
