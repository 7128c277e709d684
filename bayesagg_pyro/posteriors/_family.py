"""What all Gaussian posteriors have in common, however they store their covariance."""

from __future__ import annotations

import math
from abc import abstractmethod
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Posterior, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesagg_pyro.posteriors._gaussian import Gaussian


class Projection(NamedTuple):
    """Second moments of one linear predictor u = hᵀ w for every task and example.

    Attributes:
        cross: Cov(w, u) = S h, [tasks or 1, B, D].
        variance: Var(u) = hᵀ S h, [tasks or 1, B], at least 0.
    """

    cross: Tensor
    variance: Tensor


class Factors(NamedTuple):
    """`Projection` where Cov(w_p, u_tb) = cross_tp base_bp.

    Attributes:
        cross: [tasks or 1, P].
        base: [B, P].
        variance: Var(u) = hᵀ S h, [tasks or 1, B], at least 0.
    """

    cross: Tensor
    base: Tensor
    variance: Tensor


def laplace_order(like: Tensor, size: int, outputs: int, *, bias: bool) -> Tensor:
    """Where laplace-torch's weights stand among ours, [P]: it has all biases after all weights."""
    order = torch.arange(size, device=like.device)
    rows = order.reshape(outputs, -1)
    return torch.cat([rows[:, :-1].flatten(), rows[:, -1]]) if bias else order


class GaussianFamily(Posterior):
    """N(m, S) for each task. Subclasses differ in the structure of the precision Λ = S⁻¹.

    They give `to_gaussian`, and whatever else takes no dense precision.

    Args:
        mean: [tasks, P].
        outputs_per_task: linear outputs of one task.
        info: how it came about, if that is known.
    """

    def __init__(
        self, mean: Tensor, *, outputs_per_task: int = 1, info: Info | None = None
    ) -> None:
        super().__init__(*mean.shape, outputs_per_task=outputs_per_task, info=info)
        self._mean = mean

    @property
    def mean(self) -> Tensor:
        """Means m, [tasks, P]."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Marginal variances S_pp, [tasks, P]."""
        return self.to_gaussian().variance

    def precision_times(self, vectors: Tensor) -> Tensor:
        """Λ applied to vectors for each task, [..., tasks, P]."""
        return linalg.matvec(self.precision_matrix, vectors)

    def solve(self, vectors: Tensor) -> Tensor:
        """Λ⁻¹ applied to one vector per task, [tasks, P]."""
        return self.to_gaussian().solve(vectors)

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> Projection:
        """Moments of the predictors hᵀ w for a design matrix [B, P].

        Args:
            design: [B, P].
            dtype: of the covariances; None for the posterior's. |Cov(w_p, u)| is at most
                sqrt(S_pp Var u), in units of which the error is the rounding of `dtype`, however
                badly conditioned Λ is. The variance is always in the posterior's.

        Raises:
            UnsupportedError: for structures over several outputs per task.
        """
        return self.to_gaussian().project(design, dtype)

    def factors(self, design: Tensor) -> Factors | None:
        """Moments of the predictors as factors of size [tasks, P] and [B, P], if there are such."""
        return None

    @abstractmethod
    def to_gaussian(self) -> Gaussian:
        """The same distribution with a dense precision."""

    def with_mean(self, mean: Tensor) -> Self:
        """The same precision around another mean, [tasks, P].

        Raises:
            ShapeError: for a mean of another shape.
        """
        if mean.shape != self._mean.shape:
            raise ShapeError(
                f"the mean must have shape {list(self._mean.shape)}, not {list(mean.shape)}"
            )
        moved = copy(self)  # with all that was derived from the precision
        moved._mean = mean
        return moved

    @property
    def precision_log_det(self) -> Tensor:
        """The log-determinant of Λ, [tasks or 1]."""
        return self.to_gaussian().precision_log_det

    def mahalanobis(self, vectors: Tensor) -> Tensor:
        """Squared lengths vᵀ Λ v of [..., tasks, P], as sums of squares, [..., tasks]."""
        return self.to_gaussian().mahalanobis(vectors)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of weights [..., tasks, P], as [..., tasks].

        Raises:
            ShapeError: for weights of another shape.
        """
        constant = self._mean.shape[-1] * math.log(2 * math.pi)
        squares = self.mahalanobis(self._from_mean(value))
        return 0.5 * self.precision_log_det - 0.5 * (squares + constant)

    def entropy(self) -> Tensor:
        """(P log 2πe − log |Λ|) / 2 in nats, [tasks]."""
        constant = self._mean.shape[-1] * (1 + math.log(2 * math.pi))
        return (0.5 * (constant - self.precision_log_det)).expand(self.tasks)

    @property
    def precision_matrix(self) -> Tensor:
        """Λ, [tasks or 1, P, P]."""
        return self.to_gaussian().precision_matrix

    @property
    def covariance_matrix(self) -> Tensor:
        """S, [tasks or 1, P, P]."""
        return self.to_gaussian().covariance_matrix

    def to_laplace_order(self, *, bias: bool = True) -> Gaussian:
        """The same distribution with each task's weights as in `torch.nn.Linear.parameters()`.

        That is the weight matrix row by row, then all biases: laplace-torch's order. Here the bias
        of an output follows its own row.

        Args:
            bias: whether the head has one.
        """
        size = self.mean.shape[-1]
        order = laplace_order(self.mean, size, self.outputs_per_task, bias=bias)
        return self.to_gaussian().reordered(order)

    def copy_(self, other: GaussianFamily) -> Self:
        """Write another distribution of the same structure into this one's own tensors.

        A captured CUDA graph that reads them sees the new values at its next replay.

        Raises:
            ShapeError: if structure or shapes differ.
        """
        mine, theirs = self.tensors(), other.tensors()
        shapes = [{name: list(t.shape) for name, t in own.items()} for own in (mine, theirs)]
        if type(self) is not type(other) or shapes[0] != shapes[1]:
            raise ShapeError(
                f"a {type(other).__name__} of {shapes[1]} cannot be written into a "
                f"{type(self).__name__} of {shapes[0]}"
            )
        for name, tensor in mine.items():
            tensor.copy_(theirs[name])
        for kind in type(self).__mro__:  # a subclass caches what its base derives as well
            for name, value in vars(kind).items():
                if isinstance(value, cached_property):
                    self.__dict__.pop(name, None)
        if "info" in vars(other):
            self.info = other.info
            if "jitter" in mine and other.info is not None:
                self.info = replace(other.info, jitter=mine["jitter"])
        return self

    def rsample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weights, [*sample_shape, tasks, P]."""
        return self.to_gaussian().rsample(sample_shape, generator=generator)

    def _standard_normal(self, sample_shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Standard normal draws, [*sample_shape, tasks, P]."""
        return torch.randn(
            (*sample_shape, *self._mean.shape),
            generator=generator,
            dtype=self._mean.dtype,
            device=self._mean.device,
        )

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """Broadcast to more batch dimensions, as a Pyro MultivariateNormal."""
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        scale_tril = self.to_gaussian().scale_tril.expand(self.tasks, -1, -1)
        return dist.MultivariateNormal(self._mean, scale_tril=scale_tril).expand(
            torch.Size(batch_shape)
        )
