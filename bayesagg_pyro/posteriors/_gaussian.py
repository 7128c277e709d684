"""A Gaussian over head weights, held as mean, precision and the precision's Cholesky factor."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import lasting_property
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors._family import GaussianFamily, Projection
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Shape


class Gaussian(GaussianFamily):
    """N(m, Λ⁻¹) for each task; tasks that share Λ store it once.

    The precision is what Bayes' rule adds to, so it and its factor are kept; the covariance is
    derived only when somebody asks for it.

    Args:
        mean: [tasks, P].
        precision_matrix: [tasks or 1, P, P], symmetric positive definite.
        precision_tril: its Cholesky factor, if the caller has it already ...
        jitter: ... and the jitter, [tasks or 1], that it took (none if left out).
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the factor tells by itself if None.

    Raises:
        ShapeError: if the two do not fit.
        NumericalError: if the precision is not positive definite.
    """

    arguments: ClassVar[tuple[str, ...]] = ("mean", "precision_matrix", "precision_tril", "jitter")
    derived = ("precision_tril", "jitter")

    def __init__(
        self,
        mean: Tensor,
        precision_matrix: Tensor,
        *,
        precision_tril: Tensor | None = None,
        jitter: Tensor | None = None,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        tasks, size = mean.shape
        if precision_matrix.shape not in ((1, size, size), (tasks, size, size)):
            raise ShapeError(
                f"a mean of shape {list(mean.shape)} needs a precision of shape "
                f"[1 or {tasks}, {size}, {size}], not {list(precision_matrix.shape)}"
            )
        super().__init__(mean, outputs_per_task=outputs_per_task)
        if precision_tril is None:
            precision_tril, jitter = linalg.cholesky(precision_matrix)
        elif jitter is None:
            jitter = precision_tril.new_zeros(precision_tril.shape[0])
        if (
            precision_tril.shape != precision_matrix.shape
            or jitter.shape != precision_tril.shape[:1]
        ):
            raise ShapeError(
                f"a precision of shape {list(precision_matrix.shape)} needs a factor of that shape "
                f"and jitter [{len(precision_matrix)}], not {list(precision_tril.shape)} and "
                f"{list(jitter.shape)}"
            )
        self._precision_matrix = precision_matrix
        self.precision_tril = precision_tril
        if info is None:
            diagonal = precision_tril.diagonal(dim1=-2, dim2=-1)
            info = Info(jitter, (diagonal.amax(-1) / diagonal.amin(-1)) ** 2)
        self.info: Info = info

    @property
    def precision_matrix(self) -> Tensor:
        return self._precision_matrix

    @property
    def jitter(self) -> Tensor:
        """What was added to Λ to factor it, [tasks or 1], see `Info`."""
        return self.info.jitter

    @lasting_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Λ's lower triangle in two blocks of rows, see `linalg.split_rows`."""
        return linalg.split_rows(self.precision_matrix)

    @lasting_property
    def inverse_tril(self) -> Tensor:
        """L⁻¹ for Λ = L Lᵀ, [tasks or 1, P, P]; S = L⁻ᵀ L⁻¹, and hᵀ S h = |L⁻¹ h|²."""
        return linalg.inverse_tril(self.precision_tril)

    @lasting_property
    def covariance_matrix(self) -> Tensor:
        """S = Λ⁻¹, [tasks or 1, P, P]."""
        # Not of L⁻¹ where that is there: bits would tell what was asked for before.
        found: Tensor = torch.cholesky_inverse(self.precision_tril)
        return found

    @lasting_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of S, [tasks or 1, P, P]."""
        # S = L⁻ᵀ L⁻¹ = Rᵀ R: no precision is factored again, which may take jitter.
        r: Tensor = torch.linalg.qr(self.inverse_tril, mode="r").R
        return (r * r.diagonal(dim1=-2, dim2=-1).sign()[..., None]).mT

    @property
    def variance(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.inverse_tril, dim=-2)
        return norm.square().expand(self._mean.shape)

    def precision_times(self, vectors: Tensor) -> Tensor:
        # Λ is symmetric, and products with rows are faster than with columns.
        return (vectors[..., None, :] @ self.precision_matrix)[..., 0, :]

    def solve(self, vectors: Tensor) -> Tensor:
        if len(self.precision_tril) == 1:
            return linalg.solve(self.precision_tril, vectors)
        # The moments need L⁻¹ anyway; batched solvers would copy every factor for one column.
        inverse = self.inverse_tril
        return (inverse.mT @ (inverse @ vectors[..., None]))[..., 0]

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> Projection:
        """Moments of hᵀ w; the variance is a sum of squares."""
        whitened = design @ self.inverse_tril.mT  # rows L⁻¹ h, [tasks or 1, B, P]
        variance = torch.linalg.vector_norm(whitened, dim=-1).square()
        return Projection(whitened.to(dtype) @ self.inverse_tril.to(dtype), variance)

    def to_gaussian(self) -> Gaussian:
        """This distribution itself."""
        return self

    def reordered(self, order: Tensor) -> Gaussian:
        """The same distribution with each task's weights in another order, [P] indices."""
        return Gaussian(self.mean[:, order], self.precision_matrix[:, order][..., order])

    def rsample(
        self,
        sample_shape: Shape = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Weights m + L⁻ᵀ ε, [*sample_shape, tasks, P]."""
        z = self._standard_normal(sample_shape, generator)
        return self._mean + torch.einsum("...tk,tkp->...tp", z, self._expand(self.inverse_tril))

    @property
    def precision_log_det(self) -> Tensor:
        return 2 * self.precision_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def mahalanobis(self, vectors: Tensor) -> Tensor:
        """Squared lengths |Lᵀ v|² of [..., tasks, P], [..., tasks]."""
        tril = self._expand(self.precision_tril)
        return torch.einsum("tpk,...tp->...tk", tril, vectors).square().sum(-1)

    def condition_number(self) -> Tensor:
        """Exact 2-norm condition number of Λ, [tasks or 1]; an SVD, not per step."""
        values: Tensor = torch.linalg.svdvals(self.precision_tril)  # more digits than of Λ itself
        condition: Tensor = (values[..., 0] / values[..., -1]).square()
        return condition

    def sound(self) -> bool:
        """Whether the precision is symmetric and the factor is its own."""
        if not super().sound():
            return False
        return _belongs(self.precision_tril, self.precision_matrix, self.jitter)

    def _expand(self, matrix: Tensor) -> Tensor:
        return matrix.expand(self._mean.shape[0], -1, -1)


def _belongs(tril: Tensor, matrix: Tensor, jitter: Tensor) -> bool:
    """Whether L Lᵀ = Λ + jitter · diag(Λ), to far more than rounding takes.

    The average of two factors is no factor of the average of their matrices.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    if not ((diagonal > 0).all() and (tril.diagonal(dim1=-2, dim2=-1) > 0).all()):
        return False
    wanted = matrix + torch.diag_embed(diagonal * jitter[:, None])
    unit = diagonal.sqrt()
    apart = (tril.tril() @ tril.tril().mT - wanted).abs().amax(-1)
    return bool((apart <= 1e-5 * unit * unit.amax(-1, True)).all())
