"""Curvature of the negative log-likelihood in a head's weights, in three structures.

Each structure is a sum over examples, so it adds up over batches and processes, and put onto a
Gaussian prior it makes the precision of a posterior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import DtypeError, SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import (
    BlockedGaussian,
    DiagonalGaussian,
    Gaussian,
    GaussianFamily,
    KroneckerGaussian,
    Posterior,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Structure: TypeAlias = Literal["full", "kron", "diag"]

#: Size from which blocks are worth their extra calls on a CPU; measured with 20 tasks on two cores,
#: where they are as fast at 80 and 1.2 times as fast at 160.
_BLOCKED = 96
#: Weights of a task from which eigenvectors are not found anew for every batch.
_LARGE = 2**17


@dataclass(frozen=True)
class Summable(ABC):
    """Curvature as matrices, which add up over batches: dataclasses of sums over examples."""

    def __add__(self, other: Self) -> Self:
        return replace(self, **{k: term + vars(other)[k] for k, term in vars(self).items()})

    def scaled(self, factor: float) -> Self:
        """All sums times a number."""
        return replace(self, **{k: term * factor for k, term in vars(self).items()})

    @abstractmethod
    def matvec(self, vectors: Tensor) -> Tensor:
        """Applied to one vector per task, [tasks, P]."""

    @abstractmethod
    def posterior(self, prior: GaussianFamily, owner: str) -> GaussianFamily:
        """The Gaussian of the prior's precision and this, still around the prior's mean.

        Raises:
            SettingError: for a prior of a structure that this cannot be added to.
            NumericalError: if the sum cannot be factored.
        """


@dataclass(frozen=True)
class Dense(Summable):
    """Σ Jᵀ H J as one matrix per task, [tasks or 1, P, P]."""

    matrix: Tensor

    def matvec(self, vectors: Tensor) -> Tensor:
        return linalg.matvec(self.matrix, vectors)

    def posterior(self, prior: GaussianFamily, owner: str) -> Gaussian:
        """The Gaussian of precision Λ_prior + Σ Jᵀ H J, still around the prior's mean.

        Raises:
            NumericalError: if it cannot be factored.
        """
        total = prior.precision_matrix + self.matrix
        tril, jitter = linalg.cholesky(total, what=f"posterior precision of {owner}")
        return Gaussian(prior.mean, total, precision_tril=tril, jitter=jitter)


@dataclass(frozen=True)
class Hessian(Dense):
    """Σ ∂²(−log p)/∂w², [1, P, P], which need not be positive semi-definite."""

    def posterior(self, prior: GaussianFamily, owner: str) -> Gaussian:
        """The Gaussian of precision Λ_prior + Hessian, still around the prior's mean.

        Where that sum has eigenvalues below 1e-10 of the largest, their absolute values (at least
        that much) stand in, so that a Newton step still leads downhill. `info.jitter` then holds
        the largest change over the largest eigenvalue; at a proper minimum it is 0.
        """
        dense = prior.to_gaussian()
        total, change = linalg.by_size(dense.precision_matrix + self.matrix, 1e-10)
        return Gaussian(
            dense.mean, total, precision_tril=torch.linalg.cholesky(total), jitter=change
        )


@dataclass(frozen=True)
class Gram:
    """Σ_b ω_bt h_b h_bᵀ of one batch as its parts; `Dense` holds it as one matrix per task.

    Attributes:
        design: [B, P].
        weight: ω, at least 0, [B, tasks].
    """

    design: Tensor
    weight: Tensor

    def dense(self) -> Dense:
        """The matrices."""
        return Dense(linalg.gram(self.design, self.weight))

    def matvec(self, vectors: Tensor) -> Tensor:
        """Applied to one vector per task, [tasks, P]."""
        return ((self.design @ vectors.mT) * self.weight).mT @ self.design

    def posterior(self, prior: GaussianFamily, owner: str) -> Gaussian:
        """The Gaussian of precision Λ_prior + Σ ω h hᵀ, still around the prior's mean.

        Raises:
            NumericalError: if it cannot be factored.
        """
        tasks, size = self.weight.shape[1], self.design.shape[1]
        device = self.design.device.type
        if device == "cpu" and size >= _BLOCKED and isinstance(prior, Gaussian):
            upper, lower = prior.rows
            if len(upper) == tasks:
                upper, lower = linalg.gram_rows(self.design, self.weight, upper, lower)
                inverse = linalg.inverse_factor_rows(upper, lower)
                if inverse is not None:
                    return BlockedGaussian(prior.mean, upper, lower, *inverse)
        return self.dense().posterior(prior, owner)


@dataclass(frozen=True)
class Diagonal(Summable):
    """The diagonal of Σ Jᵀ H J, [tasks, P]."""

    diagonal: Tensor

    def matvec(self, vectors: Tensor) -> Tensor:
        return self.diagonal * vectors

    def posterior(self, prior: GaussianFamily, owner: str) -> DiagonalGaussian:
        """The Gaussian of precision λ_prior + diagonal, still around the prior's mean.

        Raises:
            SettingError: if the prior is not diagonal.
        """
        known = diagonal_prior(prior, owner)
        return DiagonalGaussian(known.mean, known.precision + self.diagonal)


@dataclass(frozen=True)
class Kronecker(Summable):
    """G ⊗ A / n ≈ Σ_i H_i ⊗ h_i h_iᵀ with G = Σ H_i, A = Σ h_i h_iᵀ.

    Attributes:
        outputs: G, [tasks, C, C].
        inputs: A, [tasks or 1, D, D].
        count: n, weights of examples included, [tasks].
    """

    outputs: Tensor
    inputs: Tensor
    count: Tensor

    def matvec(self, vectors: Tensor) -> Tensor:
        matrix = vectors.unflatten(-1, (self.outputs.shape[-1], -1))
        product: Tensor = self.outputs @ matrix @ self.inputs
        return (product / linalg.nonzero(self.count)[:, None, None]).flatten(1)

    def posterior(self, prior: GaussianFamily, owner: str) -> KroneckerGaussian:
        """The Kronecker Gaussian of these examples and the prior's, still around its mean.

        Raises:
            SettingError: if the prior is neither Kronecker nor isotropic per task.
        """
        if isinstance(prior, KroneckerGaussian):
            large = prior.mean.shape[1] > _LARGE
            return prior.plus(self.outputs, self.inputs, self.count, same_basis=large)
        isotropic = isotropic_prior(prior, owner).precision[:, 0]
        return KroneckerGaussian(prior.mean, self.outputs, self.inputs, self.count, isotropic)


Curvature: TypeAlias = Summable | Gram


def check_prior(structure: Structure, prior: GaussianFamily, owner: str) -> None:
    """Refuse a prior that curvature of that structure cannot be added to.

    Raises:
        SettingError: naming what is needed.
    """
    if structure == "diag":
        diagonal_prior(prior, owner)
    if structure == "kron" and not isinstance(prior, KroneckerGaussian):
        isotropic_prior(prior, owner)


def gaussian_prior(head: Head, prior: Posterior, who: str) -> GaussianFamily:
    """The prior, if it is a Gaussian over the head's weights.

    Args:
        head: the head.
        prior: any.
        who: asks for that, for the message.

    Raises:
        DtypeError: if it is not Gaussian.
        ShapeError: if it is over the weights of another head.
    """
    if not isinstance(prior, GaussianFamily):
        raise DtypeError(
            f"head {head.site!r}: {who} needs a Gaussian prior, not {type(prior).__name__}; choose "
            "another scheme from bayesagg_pyro.inference"
        )
    head.check_weights(prior, "prior")
    return prior


def diagonal_prior(prior: Posterior, owner: str) -> DiagonalGaussian:
    """The prior, if it is what curvature of structure "diag" needs; see `check_prior`."""
    if not isinstance(prior, DiagonalGaussian):
        raise SettingError(
            f"{owner}: structure='diag' needs a diagonal prior, not {type(prior).__name__}"
        )
    return prior


def isotropic_prior(prior: Posterior, owner: str) -> DiagonalGaussian:
    """The prior, if it is what curvature of structure "kron" can start from."""
    if not isinstance(prior, DiagonalGaussian) or bool(
        (prior.precision != prior.precision[:, :1]).any()
    ):
        raise SettingError(
            f"{owner}: structure='kron' needs an isotropic or Kronecker prior, "
            f"not {type(prior).__name__}"
        )
    return prior


def materialised(curvature: Curvature) -> Summable:
    """The curvature as matrices, which add up over batches."""
    return curvature.dense() if isinstance(curvature, Gram) else curvature
