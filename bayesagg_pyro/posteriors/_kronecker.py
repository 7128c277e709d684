"""A Gaussian over the weights of several outputs whose curvature is a Kronecker product."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._modes import lasting_property
from bayesagg_pyro.errors import ShapeError, UnsupportedError
from bayesagg_pyro.posteriors._family import GaussianFamily
from bayesagg_pyro.posteriors._gaussian import Gaussian
from bayesagg_pyro.posteriors._info import Info
from bayesagg_pyro.posteriors._posterior import Shape


class _Eigen(NamedTuple):
    outputs: Tensor  #: Q₁, [tasks, C, C]
    inputs: Tensor  #: Q₂, [tasks or 1, D, D]
    values: Tensor  #: eigenvalues of Λ, [tasks, C, D]


class _Spectrum(NamedTuple):
    left: Tensor  #: eigenvalues of G, ascending, [tasks, C]
    outputs: Tensor  #: Q₁, [tasks, C, C]
    right: Tensor  #: of A, [tasks or 1, D]
    inputs: Tensor  #: Q₂, [tasks or 1, D, D]


class KroneckerGaussian(GaussianFamily):
    """N(m, Λ⁻¹) with Λ = G ⊗ A / n + δ I, for each task (KFAC).

    Martens and Grosse (2015), https://arxiv.org/abs/1503.05671.

    G sums the curvature of the loss in the outputs over n examples and A sums h hᵀ. Used as a
    prior, it adds the new examples' sums to its own: the result is the Kronecker approximation for
    the union of both data sets, not the sum of two Kronecker products, which is none.

    Args:
        mean: [tasks, C·D], per output, bias last.
        outputs: G, [tasks, C, C].
        inputs: A, [tasks or 1, D, D].
        count: n, the sum of their weights, [tasks].
        isotropic: δ, [tasks or 1], positive.
        outputs_per_task: linear outputs of one task.
        info: how it came about; what the eigenvalues tell by themselves if None.

    Raises:
        ShapeError: if they do not fit.
    """

    arguments = ("mean", "outputs", "inputs", "count", "isotropic")

    def __init__(
        self,
        mean: Tensor,
        outputs: Tensor,
        inputs: Tensor,
        count: Tensor,
        isotropic: Tensor,
        *,
        outputs_per_task: int = 1,
        info: Info | None = None,
    ) -> None:
        super().__init__(mean, outputs_per_task=outputs_per_task, info=info)
        (tasks, size), c, d = mean.shape, outputs.shape[-1], inputs.shape[-1]
        if not (
            c * d == size
            and outputs.shape == (tasks, c, c)
            and inputs.shape in ((1, d, d), (tasks, d, d))
            and count.shape == (tasks,)
            and isotropic.shape in ((1,), (tasks,))
        ):
            shapes = [list(t.shape) for t in (outputs, inputs, count, isotropic)]
            raise ShapeError(
                f"a mean of shape {list(mean.shape)} needs outputs [tasks, C, C], inputs [1 or "
                f"tasks, D, D] with C · D = {size}, count and isotropic [tasks], not {shapes}"
            )
        self.outputs = outputs
        self.inputs = inputs
        self.count = count
        self.isotropic = isotropic

    @lasting_property
    def _spectrum(self) -> _Spectrum:
        return _Spectrum(*torch.linalg.eigh(self.outputs), *torch.linalg.eigh(self.inputs))

    def plus(
        self, outputs: Tensor, inputs: Tensor, count: Tensor, *, same_basis: bool = False
    ) -> KroneckerGaussian:
        """The precision of the sums of these examples and of more.

        Args:
            outputs: Σ H of the others, [tasks, C, C].
            inputs: Σ h hᵀ, [tasks or 1, D, D].
            count: their number, [tasks].
            same_basis: keep this one's eigenvectors, and of the others' sums what is diagonal in
                them: of few examples beside many, or of like ones, that is nearly all. It takes
                products alone, where an eigendecomposition takes ten times as long.
        """
        count = self.count + count
        if not same_basis:
            outputs, inputs = self.outputs + outputs, self.inputs + inputs
            return KroneckerGaussian(self._mean, outputs, inputs, count, self.isotropic)
        left, q1, right, q2 = self._spectrum
        spectrum = _Spectrum(*_turned(left, q1, outputs), *_turned(right, q2, inputs))
        made = KroneckerGaussian(
            self._mean,
            (spectrum.outputs * spectrum.left[..., None, :]) @ spectrum.outputs.mT,
            (spectrum.inputs * spectrum.right[..., None, :]) @ spectrum.inputs.mT,
            count,
            self.isotropic,
        )
        vars(made)["_spectrum"] = spectrum
        return made

    @lasting_property
    def eigen(self) -> _Eigen:
        """Λ = (Q₁ ⊗ Q₂) diag(values) (Q₁ ⊗ Q₂)ᵀ."""
        left, q1, right, q2 = self._spectrum
        data = left.clamp(min=0)[..., :, None] * right.clamp(min=0)[..., None, :]
        data = data / linalg.nonzero(self.count)[:, None, None]
        return _Eigen(q1, q2, data + self.isotropic[:, None, None])

    @lasting_property
    def info(self) -> Info:  # type: ignore[override]  # computed when asked for
        """No jitter is ever needed; the condition number is exact."""
        values = self.eigen.values.flatten(1)
        return Info(values.new_zeros(len(values)), values.amax(1) / values.amin(1))

    @property
    def variance(self) -> Tensor:
        """Marginal variances, [tasks, C·D]."""
        q1, q2, values = self.eigen
        return (q1.square() @ values.reciprocal() @ q2.square().mT).flatten(1)

    def precision_times(self, vectors: Tensor) -> Tensor:
        matrix = vectors.unflatten(-1, (self.outputs.shape[-1], -1))
        data = (self.outputs @ matrix @ self.inputs) / linalg.nonzero(self.count)[:, None, None]
        product: Tensor = data + self.isotropic[:, None, None] * matrix
        return product.flatten(-2)

    def solve(self, vectors: Tensor) -> Tensor:
        return self._rotate(self._unrotate(vectors) / self.eigen.values)

    def project(self, design: Tensor, dtype: torch.dtype | None = None) -> NoReturn:
        """Refuse: several outputs have no single linear predictor."""
        raise UnsupportedError("a Kronecker posterior has several linear predictors per task")

    def to_gaussian(self) -> Gaussian:
        """The same distribution with a dense precision, [tasks, C·D, C·D]."""
        q1, q2, values = self.eigen
        tasks, size = self._mean.shape
        basis = torch.einsum("tce,tdf->tcdef", q1, q2.expand(tasks, -1, -1))
        basis = basis.reshape(tasks, size, size)
        dense = Gaussian(self._mean, (basis * values.flatten(1)[:, None]) @ basis.mT)
        return self._as_dense(dense)

    def rsample(
        self, sample_shape: Shape = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weights m + Q₁ (ε / sqrt(λ)) Q₂ᵀ, [*sample_shape, tasks, C·D]."""
        z = self._standard_normal(sample_shape, generator).unflatten(
            -1, self.eigen.values.shape[1:]
        )
        return self._mean + self._rotate(z * self.eigen.values.rsqrt())

    def sample_outputs(
        self, design: Tensor, samples: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw the outputs W φ of each row of a design [B, D], [samples, B, tasks, C].

        Outputs of a row are independent in the basis Q₁, so no W is drawn, of which one has C·D
        entries. Every row sees the same normal numbers, whatever rows are beside it: each has its
        own law, but the rows together not that of one W.
        """
        q1, q2, values = self.eigen
        mean = design @ self._mean.unflatten(-1, values.shape[1:]).mT
        variance = (design @ q2).square() @ values.reciprocal().mT  # [tasks, B, C]
        std = torch.where(variance > 0, variance, 0.0).sqrt()  # whose slope at 0 is infinite
        z = torch.randn(
            (len(values), samples, 1, std.shape[-1]),
            generator=generator,
            dtype=std.dtype,
            device=std.device,
        )
        spread = ((z * std[:, None]).flatten(1, 2) @ q1.mT).unflatten(1, (samples, -1))
        outputs: Tensor = (mean[:, None] + spread).permute(1, 2, 0, 3)
        return outputs

    @property
    def precision_log_det(self) -> Tensor:
        """The log-determinant of Λ, [tasks]."""
        return self.eigen.values.log().sum((-2, -1))

    def mahalanobis(self, vectors: Tensor) -> Tensor:
        """Squared lengths vᵀ Λ v of [..., tasks, C·D], [..., tasks]."""
        return (self._unrotate(vectors).square() * self.eigen.values).sum((-2, -1))

    def sound(self) -> bool:
        """Whether both factors are semi-definite, up to rounding, and the rest is positive."""
        if not super().sound():
            return False
        values = [torch.linalg.eigvalsh(matrix) for matrix in (self.outputs, self.inputs)]
        definite = all(bool((v[..., 0] >= -1e-6 * v[..., -1].abs()).all()) for v in values)
        return definite and bool((self.count >= 0).all() & (self.isotropic > 0).all())

    def _unrotate(self, vectors: Tensor) -> Tensor:
        """[..., tasks, C·D] -> coordinates in the eigenbasis, [..., tasks, C, D]."""
        q1, q2, values = self.eigen
        coordinates: Tensor = q1.mT @ vectors.unflatten(-1, values.shape[1:]) @ q2
        return coordinates

    def _rotate(self, coordinates: Tensor) -> Tensor:
        q1, q2, _ = self.eigen
        return (q1 @ coordinates @ q2.mT).flatten(-2)


def _turned(values: Tensor, vectors: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of V diag(λ) Vᵀ and the diagonal of Vᵀ M V, ascending, and their vectors."""
    values = values + ((more @ vectors) * vectors).sum(-2)
    values, order = values.sort(-1)
    return values, vectors.gather(-1, order[..., None, :].expand_as(vectors))
