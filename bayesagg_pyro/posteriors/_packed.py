"""A dense Gaussian in a quarter of the memory: what a prior over very many tasks is kept as."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro._pieces import slices
from bayesagg_pyro.errors import NumericalError, ShapeError
from bayesagg_pyro.posteriors._family import GaussianFamily
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info


class PackedGaussian(GaussianFamily):
    """N(m, Λ⁻¹) stored as the lower triangle of each Λ, in any dtype, without a factor.

    A `Gaussian` holds Λ and its factor, 16 P² bytes a task in float64; this one 2 P² in float32.
    Rounding to float32 changes each entry of Λ by at most 6e-8 of itself; entries are kept in units
    of the diagonal, so none can overflow. All else is computed by way of a `Gaussian`, so it pays
    where few tasks are unpacked at a time (`part`).

    Args:
        mean: [tasks, P].
        lower: [tasks or 1, P (P + 1) / 2], rows of the lower triangle one after the other.
        scale: c, [tasks or 1, P], where `lower` is of Λ / c cᵀ; None for 1.
        outputs_per_task: linear outputs of one task.
        info: how it came about, if that is known.

    Raises:
        ShapeError: if the two do not fit.
    """

    arguments = ("mean", "lower", "scale")

    def __init__(
        self,
        mean: Tensor,
        lower: Tensor,
        scale: Tensor | None = None,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        tasks, size = mean.shape
        length = size * (size + 1) // 2
        if lower.shape not in ((1, length), (tasks, length)):
            raise ShapeError(
                f"a mean of shape {list(mean.shape)} needs a packed precision of shape "
                f"[1 or {tasks}, {length}], not {list(lower.shape)}"
            )
        if scale is not None and scale.shape != (len(lower), size):
            raise ShapeError(
                f"a packed precision of shape {list(lower.shape)} has a scale of shape "
                f"[{len(lower)}, {size}], not {list(scale.shape)}"
            )
        super().__init__(mean, outputs_per_task=outputs_per_task, info=info)
        self.lower = lower
        self.scale = scale

    @classmethod
    def pack(cls, posterior: GaussianFamily, dtype: torch.dtype) -> PackedGaussian:
        """Any Gaussian's mean, and its precision in `dtype`.

        Raises:
            NumericalError: on the CPU, if rounding to `dtype` costs a precision its definiteness.
        """
        matrix = posterior.precision_matrix
        row, column = _triangle(matrix.shape[-1], matrix.device)
        scale = matrix.diagonal(dim1=-2, dim2=-1).sqrt()
        unit = matrix[:, row, column] / scale[:, row] / scale[:, column]
        packed = cls(
            posterior.mean,
            unit.to(dtype),
            scale,
            outputs_per_task=posterior.outputs_per_task,
            info=posterior.info,
        )
        if matrix.device.type == "cpu" and dtype != matrix.dtype and not packed.sound():
            raise NumericalError(
                f"a precision rounded to {dtype} is no longer positive definite; keep the prior in "
                "a wider dtype, strengthen it, or standardise or decorrelate the features"
            )
        return packed

    @property
    def precision_matrix(self) -> Tensor:
        """Λ in the mean's precision, [tasks or 1, P, P]; unpacked at each call."""
        size = self._mean.shape[-1]
        row, column = _triangle(size, self._mean.device)
        matrix = self._mean.new_empty(len(self.lower), size, size)
        values = self.lower.to(matrix.dtype)
        if self.scale is not None:
            values = values * self.scale[:, row] * self.scale[:, column]
        matrix[:, row, column] = values
        matrix[:, column, row] = values
        return matrix

    def to_gaussian(self) -> Gaussian:
        """The same distribution with a dense precision and its factor."""
        return self._as_dense(Gaussian(self._mean, self.precision_matrix))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.to_gaussian().log_prob(value)

    def sound(self) -> bool:
        """Whether every precision can be factored, some tasks at a time."""
        if not super().sound():
            return False
        try:
            for rows in slices(self.tasks, 64):
                self.part(rows).variance  # noqa: B018
        except NumericalError:
            return False
        return True

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> PackedGaussian:
        """Move all tensors; `dtype` is what it unpacks to, the packed numbers stay as they are."""
        moved = {
            name: tensor.to(device=device, dtype=None if name == "lower" else dtype)
            for name, tensor in self.tensors().items()
        }
        return self._rebuilt(moved, self._info and self._info.to(device, dtype))


def _triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row, column = torch.tril_indices(size, size, device=device).unbind(0)
    return row, column
