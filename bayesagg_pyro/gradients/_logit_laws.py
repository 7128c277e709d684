"""Joint laws of the logits of one example and of the weights given them; see `_conditional`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bayesagg_pyro.heads import Categorical
from bayesagg_pyro.linalg import reciprocal
from bayesagg_pyro.posteriors import GaussianFamily, KroneckerGaussian

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Law(ABC):
    """Logits and weights of some examples, as functions of standard normal z in R^C.

    Points z are [C, J], `delta` is softmax(f) − e_y at them, [tasks, b, C, J], with memory in
    whatever order is fast.

    Attributes:
        logit_mean: E f, [tasks, b, C].
        weight_mean: M, [tasks, C, d].
    """

    logit_mean: Tensor
    weight_mean: Tensor

    #: Attributes whose second axis is that of examples.
    per_example: ClassVar[tuple[str, ...]] = ("logit_mean",)

    @abstractmethod
    def spread(self) -> Tensor:
        """The largest standard deviation of an example's logits less their average, [tasks, b]."""

    @abstractmethod
    def probabilities(self, z: Tensor) -> Tensor:
        """softmax(f) at the points, [tasks, b, C, J]."""

    @abstractmethod
    def mean(self, delta: Tensor, z: Tensor) -> Tensor:
        """E g, [tasks, b, d]."""

    @abstractmethod
    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        """E g and Var g, [tasks, b, d] each; variances over the points divide by `degrees`."""

    def examples(self, rows: Tensor | slice) -> Self:
        """Some of the examples, by index."""
        return replace(self, **{name: getattr(self, name)[:, rows] for name in self.per_example})


@dataclass(frozen=True)
class DenseLaw(Law):
    """Logits with a full covariance Cov(f) = R Rᵀ.

    Attributes:
        root: R, symmetric but for the order of its columns, [tasks, b, C, C].
        inverse: such that (f − E f)ᵀ `inverse` = zᵀ, likewise.
        cross: Cov(W_cd, f_k), [tasks, b, C (k), C (c), d].
        blocks: Cov(W_cd, W_ed), [tasks, C, C, d].
    """

    root: Tensor
    inverse: Tensor
    cross: Tensor
    blocks: Tensor

    per_example: ClassVar[tuple[str, ...]] = ("logit_mean", "root", "inverse", "cross")

    def spread(self) -> Tensor:
        centred = self.root - self.root.mean(-2, keepdim=True)
        return centred.square().sum(-1).amax(-1).sqrt()

    def probabilities(self, z: Tensor) -> Tensor:
        return (self.root @ z).add_(self.logit_mean[..., None]).softmax(2)

    def mean(self, delta: Tensor, z: Tensor) -> Tensor:
        centre = delta.mean(-1) @ self.weight_mean
        shares = self.inverse @ (z @ delta.mT / z.shape[1])  # of Cov(W_cd, f_k), [tasks, b, k, c]
        return centre + (shares.flatten(2)[:, :, None] @ self.cross.flatten(2, 3))[:, :, 0]

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        batch = self.logit_mean.shape[1]
        gain = (self.inverse.mT @ self.cross.flatten(3)).unflatten(-1, self.cross.shape[-2:])
        # φ and its coefficients, class by class: (δ_c, δ_c z_1, ...) and (M_c, G_1c, ...).
        phi = (delta[:, :, :, None] * torch.cat([torch.ones_like(z[:1]), z])).flatten(2, 3)
        own = self.weight_mean[:, None, :, None].expand(-1, batch, -1, -1, -1)
        coefficients = torch.cat([own, gain.transpose(2, 3)], 3).flatten(2, 3)
        mean, variance = _linear_moments(phi, coefficients, degrees)
        outer = delta @ delta.mT / z.shape[1]
        conditional = (outer.flatten(2) @ self.blocks.flatten(1, 2)).sub_(
            ((outer[:, :, None] @ gain) * gain).sum((2, 3))  # Σ_ce E[δ_c δ_e] Σ_k G_kcd G_ked
        )
        return mean, variance + conditional.clamp_(min=0)


@dataclass(frozen=True)
class IndependentLaw(Law):
    """Weights that are independent in a basis Q₁ ⊗ Q₂ of classes and features.

    Attributes:
        basis: Q₁, [tasks, C, C]; None for the classes themselves.
        inputs: Q₂, its rows of features, [tasks or 1, d, D]; None for the features themselves.
        coordinates: Q₂ᵀ h, [tasks or 1, b, D].
        weight_variance: in that basis, [tasks, C, D].
        std: of the logits, [tasks, b, C].
        by_samples: whether samples of E[g | z] are made, and no matrix of C × d for an example; for
            weights that are independent as they are.
    """

    basis: Tensor | None
    inputs: Tensor | None
    coordinates: Tensor
    weight_variance: Tensor
    std: Tensor
    by_samples: bool = False

    per_example: ClassVar[tuple[str, ...]] = ("logit_mean", "coordinates", "std")

    def spread(self) -> Tensor:
        classes = self.std.shape[-1]
        eye = torch.eye(classes, dtype=self.std.dtype, device=self.std.device)
        basis = eye[None] if self.basis is None else self.basis
        centred = basis - basis.mean(-2, keepdim=True)
        return (self.std.square() @ centred.square().mT).amax(-1).sqrt()

    def probabilities(self, z: Tensor) -> Tensor:
        return self._logits(z).softmax(1).transpose(1, 2)

    def _logits(self, z: Tensor) -> Tensor:
        """Classes first in memory, [tasks, C, b, J], for products that all examples share."""
        std = self.std.mT.contiguous()
        spread = std[..., None] * self._turned(z[None])[:, :, None]
        if self.basis is not None:
            spread = (self.basis @ spread.flatten(2)).view(spread.shape)
        return spread.add_(self.logit_mean.mT[..., None])

    def mean(self, delta: Tensor, z: Tensor) -> Tensor:
        turned = self._turned(z[None])
        if self.basis is None:
            shares = (delta * turned[:, None]).mean(-1)
        else:  # Σ_c Q₁_ck E[δ_c z_k]
            products = (delta.transpose(1, 2).flatten(1, 2) @ turned.mT).div_(z.shape[1])
            products = products.unflatten(1, (len(z), -1))  # [tasks, C (c), b, C (k)]
            shares = products.mul_(self.basis[:, :, None]).sum(1)
        shares = (shares * reciprocal(self.std)) @ self.weight_variance
        pulled = self._from_basis(shares * self.coordinates)
        mean: Tensor = pulled + delta.mean(-1) @ self.weight_mean
        return mean

    def moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        if not self.by_samples:
            return self._moments(delta, z, degrees)
        own = delta * z * reciprocal(self.std)[..., None]
        samples = self._weighed(own)  # E[g | z], [tasks, b, J, d]
        samples += shared_product(delta.mT, self.weight_mean)
        mean = samples.mean(2)
        between = samples.sub_(mean[:, :, None]).square_().sum(2) / degrees
        square = delta.square().mean(-1)
        # Σ_k E[δ_k²] G_kd² as the mean square of its root with random signs.
        root = (square.sqrt() * reciprocal(self.std))[..., None] * z.sign()
        known = self._weighed(root).square_().mean(2)
        left = (square @ self.weight_variance)[..., : known.shape[-1]].sub_(known).clamp_(min=0)
        return mean, between.add_(left)

    def _weighed(self, coefficients: Tensor) -> Tensor:
        """Σ_k a_k Cov(W_kd, f_k), [tasks, b, C, J] -> [tasks, b, J, d]."""
        found = shared_product(coefficients.mT, self.weight_variance)
        return found.mul_(self.coordinates[:, :, None])[..., : self.weight_mean.shape[-1]]

    def _moments(self, delta: Tensor, z: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
        variance, own = self.weight_variance, self.weight_mean
        if self.inputs is not None:
            variance = variance @ self.inputs.square().mT
        if self.basis is not None:
            own = self.basis.mT @ own
        each = reciprocal(self.std)[..., None] * self.weight_variance[:, None]
        gain = self._from_basis(each.mul_(self.coordinates[:, :, None]))  # Cov(W, z), [.., C, d]
        delta = self._turned(delta)
        phi = torch.cat([delta, delta * self._turned(z[None])[:, None]], 2)
        own = own[:, None].expand_as(gain)
        mean, between = _linear_moments(phi, torch.cat([own, gain], 2), degrees)
        square = delta.square().mean(-1)  # [tasks, b, C]
        left = (variance[:, None, :, : gain.shape[-1]] - gain.square()).clamp_(min=0)
        return mean, between.add_((square[:, :, None] @ left)[:, :, 0])

    def _turned(self, values: Tensor) -> Tensor:
        """From classes to the basis, [tasks or 1, ..., C, J]; z itself is near the classes."""
        if self.basis is None:
            return values
        own = values.movedim(-2, 1)
        turned: Tensor = (self.basis.mT @ own.flatten(2)).unflatten(2, own.shape[2:])
        return turned.movedim(1, -2)

    def _from_basis(self, values: Tensor) -> Tensor:
        """From the basis of features, [tasks, b, ..., D], to the features, [tasks, b, ..., d]."""
        if self.inputs is None:
            return values[..., : self.weight_mean.shape[-1]]
        found: Tensor = (values.flatten(1, -2) @ self.inputs.mT).unflatten(1, values.shape[1:-1])
        return found


def shared_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """[tasks, b, n, p] times a matrix of all examples, [tasks or 1, p, q], as one product."""
    found: Tensor = (rows.flatten(1, 2) @ matrix).unflatten(1, rows.shape[1:3])
    return found


def dense_law(head: Categorical, posterior: GaussianFamily, design: Tensor) -> DenseLaw:
    """The law for some rows of a design matrix."""
    classes, d = head.classes, head.in_features
    weight_mean = posterior.mean.unflatten(-1, (classes, -1))
    s = posterior.covariance_matrix
    rows = s.unflatten(1, (classes, -1))  # [tasks or 1, C, D, C · D]
    # Cov(W_cd, f_k), [tasks, b, k, c, D]
    cross = (design @ rows).transpose(1, 2).unflatten(-1, (classes, -1))
    cross = cross.expand(head.tasks, -1, -1, -1, -1)
    covariance = (cross.flatten(2, 3) @ design[:, :, None]).unflatten(2, (classes, -1))[..., 0]
    covariance = 0.5 * (covariance + covariance.mT)
    # An eigenvector basis needs no jitter: directions without variance (all of them for h = 0
    # without a bias) drop out of the term in z.
    values, vectors = torch.linalg.eigh(covariance)
    certain = values <= values[..., -1:] * classes * torch.finfo(values.dtype).eps
    root = (vectors * torch.where(certain, 0.0, values).sqrt()[..., None, :]) @ vectors.mT
    inverse = (vectors * torch.where(certain, 0.0, values.rsqrt())[..., None, :]) @ vectors.mT
    mean = (design @ weight_mean.mT).expand(head.tasks, -1, -1)
    # The first coordinates of Sobol points are the most even: they go to the likeliest classes.
    order = mean + covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    order = order.argsort(-1, descending=True)[..., None, :].expand_as(root)
    blocks = s.unflatten(2, (classes, -1)).unflatten(1, (classes, -1))
    return DenseLaw(
        mean,
        weight_mean[..., :d],
        root.gather(-1, order),
        inverse.gather(-1, order),
        cross[..., :d],
        blocks[..., :d, :, :d].diagonal(dim1=2, dim2=4).expand(head.tasks, -1, -1, -1),
    )


def independent_law(
    head: Categorical, posterior: GaussianFamily, design: Tensor, *, by_samples: bool = False
) -> IndependentLaw:
    """The law for some rows of a design matrix."""
    classes, d, dtype = head.classes, head.in_features, design.dtype
    weight_mean = posterior.mean.unflatten(-1, (classes, -1)).to(dtype)
    basis = inputs = None
    coordinates = design[None]
    if isinstance(posterior, KroneckerGaussian):
        basis, turn, values = posterior.eigen
        basis, turn = basis.to(dtype), turn.to(dtype)
        coordinates = design @ turn
        inputs, variance = turn[:, :d], values.reciprocal()
    else:
        variance = posterior.variance.unflatten(-1, (classes, -1))
    variance = variance.to(dtype)
    return IndependentLaw(
        (design @ weight_mean.mT).expand(head.tasks, -1, -1),
        weight_mean[..., :d],
        basis,
        inputs,
        coordinates,
        variance,
        (coordinates.square() @ variance.mT).sqrt(),
        by_samples,
    )


def _linear_moments(phi: Tensor, a: Tensor, degrees: int) -> tuple[Tensor, Tensor]:
    """Of aᵀ φ over samples: φ [tasks, b, q, J] (written to), a [tasks, b, q, d]."""
    average = phi.mean(-1, keepdim=True)
    mean = (average.mT @ a)[:, :, 0]
    phi -= average
    if a.shape[-1] > a.shape[-2]:  # fewer coefficients than features: d stays out of the samples
        covariance = phi @ phi.mT / degrees
        return mean, ((covariance @ a) * a).sum(-2).clamp_(min=0)
    return mean, (a.mT @ phi).square_().sum(-1) / degrees
