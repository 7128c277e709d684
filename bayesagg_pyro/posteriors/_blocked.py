"""A dense Gaussian kept in two by two blocks: what a step over many tasks of one block each takes.

LAPACK factors one matrix at a time, and the batch is copied before and its triangles cleared after,
which at P = 161 is most of the time. At half the size most of the work is in matrix products, a
quarter of it (the zeros above the diagonal) is never done, and the pieces stay in the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import lasting_property
from bayesagg_pyro.errors import NumericalError
from bayesagg_pyro.posteriors._family import GaussianFamily, Projection
from bayesagg_pyro.posteriors._gaussian import Gaussian, _belongs
from bayesagg_pyro.posteriors._info import Info


class BlockedGaussian(Gaussian):
    """N(m, Λ⁻¹) for each task, held as the rows of the lower triangles of Λ and of L⁻¹ (Λ = L Lᵀ).

    A `Gaussian` in all that it offers; whole matrices are put together when somebody asks for one.
    With k the larger half of P, rows 0 … k have k columns and the others P.

    Args:
        mean: [tasks, P].
        upper: Λ's first k rows and columns, [tasks, k, k].
        lower: Λ's other rows, [tasks, P - k, P].
        upper_inverse: of L⁻¹ likewise, if the caller has it already; [tasks, k, k] ...
        lower_inverse: ... and [tasks, P - k, P].
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the factor tells by itself if None.

    Raises:
        NumericalError: if the precision cannot be factored as it is, without jitter.
    """

    arguments = ("mean", "upper", "lower", "upper_inverse", "lower_inverse")
    derived = ("upper_inverse", "lower_inverse")

    def __init__(
        self,
        mean: Tensor,
        upper: Tensor,
        lower: Tensor,
        upper_inverse: Tensor | None = None,
        lower_inverse: Tensor | None = None,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        GaussianFamily.__init__(self, mean, outputs_per_task=outputs_per_task)
        if upper_inverse is None or lower_inverse is None:
            found = linalg.inverse_factor_rows(upper, lower)
            if found is None:
                raise NumericalError(
                    "a precision in blocks is not positive definite; make a posteriors.Gaussian, "
                    "which adds jitter where it helps"
                )
            upper_inverse, lower_inverse = found
        self.upper, self.lower = upper, lower
        self.upper_inverse, self.lower_inverse = upper_inverse, lower_inverse
        self.info: Info = self._condition() if info is None else info

    def _condition(self) -> Info:
        """No jitter, and what the diagonal of L⁻¹ tells of the condition."""
        size = self.upper.shape[-1]
        diagonal = torch.cat(
            [
                self.upper_inverse.diagonal(dim1=-2, dim2=-1),
                self.lower_inverse[..., size:].diagonal(dim1=-2, dim2=-1),
            ],
            -1,
        )
        jitter = diagonal.new_zeros(len(diagonal))
        return Info(jitter, (diagonal.amax(-1) / diagonal.amin(-1)) ** 2)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Λ's lower triangle in two blocks of rows."""
        return self.upper, self.lower

    @property
    def precision_matrix(self) -> Tensor:
        """Λ, [tasks, P, P]; put together at each call."""
        size = self.upper.shape[-1]
        top = torch.cat([self.upper, self.lower[..., :size].mT], -1)
        return torch.cat([top, self.lower], -2)

    @lasting_property
    def precision_tril(self) -> Tensor:  # type: ignore[override]
        """L, [tasks, P, P]."""
        return linalg.cholesky(self.precision_matrix).tril

    @lasting_property
    def inverse_tril(self) -> Tensor:
        """L⁻¹, [tasks, P, P]."""
        right = self.lower.shape[-2]
        return torch.cat(
            [torch.nn.functional.pad(self.upper_inverse, (0, right)), self.lower_inverse], -2
        )

    @property
    def variance(self) -> Tensor:
        """Marginal variances S_pp, [tasks, P], as sums of squares over the columns of L⁻¹."""
        size = self.upper.shape[-1]
        variance: Tensor = torch.linalg.vector_norm(self.lower_inverse, dim=-2).square()
        variance[:, :size] += torch.linalg.vector_norm(self.upper_inverse, dim=-2).square()
        return variance

    def solve(self, vectors: Tensor) -> Tensor:
        size = self.upper.shape[-1]
        row = vectors[:, None]  # products with rows are faster than with columns
        first = row[..., :size] @ self.upper_inverse.mT @ self.upper_inverse
        solution: Tensor = row @ self.lower_inverse.mT @ self.lower_inverse
        solution[..., :size] += first
        return solution.squeeze(1)

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> Projection:
        size = self.upper.shape[-1]
        design = design.expand(self.tasks, -1, -1)
        first = design[..., :size] @ self.upper_inverse.mT
        second = design @ self.lower_inverse.mT
        norms = [torch.linalg.vector_norm(part, dim=-1).square() for part in (first, second)]
        cross = second.to(dtype) @ self.lower_inverse.to(dtype)
        cross[..., :size] += first.to(dtype) @ self.upper_inverse.to(dtype)
        return Projection(cross, norms[0] + norms[1])

    def to_gaussian(self) -> Gaussian:
        """The same distribution with whole matrices."""
        dense = Gaussian(
            self._mean,
            self.precision_matrix,
            precision_tril=self.precision_tril,
            jitter=self.jitter,
        )
        return self._as_dense(dense)

    def sound(self) -> bool:
        """Whether the precision is definite and the inverse factor is its own."""
        inverse = self.inverse_tril
        positive = bool((inverse.diagonal(dim1=-2, dim2=-1) > 0).all())
        return (
            GaussianFamily.sound(self)
            and positive
            and _belongs(linalg.inverse_tril(inverse), self.precision_matrix, self.jitter)
        )
