"""A Gaussian whose weights are independent: a prior, or the cheapest of approximations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import numbers
from bayesagg_pyro.errors import NumericalError, SettingError, ShapeError
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


class _Head(Protocol):
    """The part of a head that a distribution over its weights needs."""

    @property
    def site(self) -> str: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def blocks(self) -> int: ...
    @property
    def weight_size(self) -> int: ...
    @property
    def outputs_per_task(self) -> int: ...


def isotropic(head: _Head, variance: float | Sequence[float] | Tensor) -> DiagonalGaussian:
    """N(0, variance · I) over all weights of each task, bias included.

    Args:
        head: whose weights; the prior lies on the head's device, in float64 where it exists.
        variance: one number, or one per task.

    Raises:
        SettingError: if a variance is not positive and finite.
        ShapeError: if there is neither one variance nor one per task.
    """
    device = head.weight.device
    what = f"head {head.site!r}: the prior variance"
    value = variance if isinstance(variance, Tensor) else numbers(what, variance)
    value = value.to(device, linalg.head_dtype(device))
    if value.shape not in ((), (head.blocks,)):
        raise ShapeError(
            f"head {head.site!r}: variance must be one number or one for each of {head.blocks} "
            f"tasks, not of shape {list(value.shape)}"
        )
    if not (value.isfinite() & (value > 0)).all():
        raise SettingError(f"{what} must be positive and finite, not {variance}")
    mean = value.new_zeros(head.blocks, head.weight_size)
    precision = value.reciprocal().reshape(-1, 1).expand(-1, head.weight_size)
    return DiagonalGaussian(mean, precision, outputs_per_task=head.outputs_per_task)
