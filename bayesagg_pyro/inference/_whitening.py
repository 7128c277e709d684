"""Coordinates in which a posterior is nearly a standard normal: what samplers and guides like.

Whitening, or a non-centred parametrisation (Papaspiliopoulos, Roberts and Sköld, 2007,
https://doi.org/10.1214/088342307000000014).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bayesagg_pyro._optimise import maximise
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.inference._curvature import Structure, diagonal_prior
from bayesagg_pyro.inference._expansion import check_structure, chunk_of
from bayesagg_pyro.inference._joint import Joint
from bayesagg_pyro.inference._laplace import Laplace
from bayesagg_pyro.posteriors import DiagonalGaussian, Gaussian, GaussianFamily, Posterior

Whiten: TypeAlias = Literal["laplace", "prior"]

#: Whitening needs no exact mode: a thousandth of a standard deviation.
_TOLERANCE = 1e-3
_STEPS = 50


def check_whiten(whiten: Whiten) -> None:
    """Refuse coordinates that are none of the known ones."""
    if whiten not in get_args(Whiten):
        raise SettingError(f'whiten must be "laplace" or "prior", not {whiten!r}')


class DenseWhitening:
    """A = L⁻ᵀ for the precision L Lᵀ of the centre: P × P per task."""

    def __init__(self, centre: GaussianFamily) -> None:
        self.centre: Gaussian = centre.to_gaussian()

    def weights(self, z: Tensor) -> Tensor:
        """m + L⁻ᵀ z."""
        matrix = self.centre.inverse_tril
        return self.centre.mean + (z[..., None, :] @ matrix)[..., 0, :]

    def coordinates(self, weight: Tensor) -> Tensor:
        """Lᵀ (w − m)."""
        offset = weight - self.centre.mean
        return (offset[..., None, :] @ self.centre.precision_tril)[..., 0, :]

    def prior(self, prior: GaussianFamily) -> Gaussian:
        """Precision L⁻¹ Λ_p L⁻ᵀ."""
        matrix = self.centre.inverse_tril
        precision = matrix @ prior.to_gaussian().precision_matrix @ matrix.mT
        return Gaussian(self.coordinates(prior.mean), 0.5 * (precision + precision.mT))

    def gaussian(self, mean: Tensor, scale_tril: Tensor) -> Gaussian:
        """The Gaussian of w where z ~ N(mean, C Cᵀ), [tasks, P] and [tasks, P, P]."""
        # Λ = M Mᵀ with M = L C⁻ᵀ, that is Mᵀ = C⁻¹ Lᵀ.
        root = torch.linalg.solve_triangular(scale_tril, self.centre.precision_tril.mT, upper=False)
        return Gaussian(self.weights(mean), root.mT @ root)


class DiagonalWhitening:
    """A = diag(λ)^(-1/2) for the precision λ of the centre: no P × P anywhere."""

    def __init__(self, centre: DiagonalGaussian) -> None:
        self.centre: DiagonalGaussian = centre
        self.scale = centre.precision.rsqrt().expand_as(centre.mean)

    def weights(self, z: Tensor) -> Tensor:
        """m + z / sqrt(λ)."""
        return self.centre.mean + z * self.scale

    def coordinates(self, weight: Tensor) -> Tensor:
        """sqrt(λ) (w − m)."""
        return (weight - self.centre.mean) / self.scale

    def prior(self, prior: GaussianFamily) -> GaussianFamily:
        """Diagonal for a diagonal prior, else dense."""
        mean = self.coordinates(prior.mean)
        if isinstance(prior, DiagonalGaussian):
            return DiagonalGaussian(mean, prior.precision * self.scale.square())
        dense = prior.to_gaussian().precision_matrix
        return Gaussian(mean, dense * self.scale[..., :, None] * self.scale[..., None, :])


#: w = m + A z for each task: z is standard normal where w follows the Gaussian `centre`.
Whitening: TypeAlias = DenseWhitening | DiagonalWhitening


def approximate(joint: Joint, start: Posterior | None) -> Gaussian:
    """Laplace's approximation, from the mean of `start` or the head's own weights.

    By the curvature of the library's own heads where there is one, else by automatic derivatives.
    """
    point = _point(joint, start)
    found = _laplace(joint, joint.prior.to_gaussian(), point, "full")
    if found is None:
        mode, precision, _ = maximise(joint.log_prob, point, tolerance=_TOLERANCE, max_steps=_STEPS)
        return Gaussian(mode, precision)
    return found.to_gaussian()


def approximate_diagonally(joint: Joint, start: Posterior | None) -> DiagonalGaussian:
    """The mode, and the precision of each weight given all others: the mean-field optimum.

    Heads without a second-order expansion get the prior around the head's own weights.
    """
    prior, point = joint.prior, _point(joint, start)
    if not isinstance(prior, DiagonalGaussian):
        diagonal = prior.to_gaussian().precision_matrix.diagonal(dim1=-2, dim2=-1)
        prior = DiagonalGaussian(prior.mean, diagonal)
    found = _laplace(joint, prior, point, "diag") or prior.with_mean(point)
    return diagonal_prior(found, f"head {joint.head.site!r}")


def _point(joint: Joint, start: Posterior | None) -> Tensor:
    return joint.point() if start is None else start.mean.to(joint.features)


@torch.no_grad()
def _laplace(
    joint: Joint, prior: GaussianFamily, point: Tensor, structure: Structure
) -> GaussianFamily | None:
    """Laplace's approximation with a curvature of that structure, if the head has one."""
    try:
        check_structure(joint.head, structure)
    except SettingError:
        return None
    chunk = chunk_of(joint.head, joint.features, joint.targets)
    scheme = Laplace(structure, tolerance=_TOLERANCE, max_steps=_STEPS)
    return scheme.fit(joint.head, [chunk], prior, point)
