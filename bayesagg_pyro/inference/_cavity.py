"""Taking a batch back out of a Gaussian that holds it (a cavity distribution)."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.inference._curvature import (
    Dense,
    Diagonal,
    Kronecker,
    Summable,
    diagonal_prior,
)
from bayesagg_pyro.posteriors import (
    DiagonalGaussian,
    Gaussian,
    GaussianFamily,
    KroneckerGaussian,
)

#: Eigenvalues of a factor below minus this share of its largest are no rounding.
_ROUNDING = 1e-9


def cavity(
    terms: Summable, shift: Tensor, prior: GaussianFamily, base: GaussianFamily, owner: str
) -> GaussianFamily:
    """Λ = Λ_p − B, m = m_p − Λ⁻¹ shift, where that is at least half as tight as the base.

    Features move between the time a prior saw a batch and the time it is left out, so B need not be
    a part of Λ_p. A task of which too little would be left keeps its prior. Nothing here waits for
    the device, but for the eigenvalues of a Kronecker prior.

    Args:
        terms: B.
        shift: minus the slope of the batch's negative log-likelihood at m_p, [tasks, P].
        prior: N(m_p, Λ_p⁻¹).
        base: what the prior was built on.
        owner: for messages.

    Returns:
        The Gaussian; `info.left_out`, [tasks] bool, says for which tasks the batch is out.
    """
    if isinstance(terms, Dense):
        precision: GaussianFamily
        precision, found = _dense(terms, prior.to_gaussian(), base)
    elif isinstance(terms, Diagonal):
        known, before = diagonal_prior(prior, owner), diagonal_prior(base, owner)
        precision, found = _diagonal(terms, known, before)
    elif isinstance(terms, Kronecker) and isinstance(prior, KroneckerGaussian):
        precision, found = _kronecker(terms, prior)
    else:
        raise SettingError(
            f"{owner}: structure='kron' leaves a batch out of Kronecker priors, not of a "
            f"{type(prior).__name__}"
        )
    mean = prior.mean - precision.solve(shift)
    result = precision.with_mean(torch.where(found[:, None], mean, prior.mean))
    result = result.with_info(left_out=found.expand(prior.tasks))
    return result.replace(outputs_per_task=prior.outputs_per_task)


def _dense(terms: Dense, prior: Gaussian, base: GaussianFamily) -> tuple[Gaussian, Tensor]:
    left = prior.precision_matrix - terms.matrix
    tril, failed = torch.linalg.cholesky_ex(left)
    floor = 0.5 * base.precision_matrix.to(left)
    found = (failed == 0) & (torch.linalg.cholesky_ex(left - floor).info == 0)
    keep = found[:, None, None]
    jitter = torch.where(found, 0.0, prior.jitter)
    return (
        Gaussian(
            prior.mean,
            torch.where(keep, left, prior.precision_matrix),
            precision_tril=torch.where(keep, tril, prior.precision_tril),
            jitter=jitter,
        ),
        found,
    )


def _diagonal(
    terms: Diagonal, prior: DiagonalGaussian, base: DiagonalGaussian
) -> tuple[DiagonalGaussian, Tensor]:
    left = prior.precision - terms.diagonal
    found = (left >= 0.5 * base.precision.to(left)).all(-1)
    return DiagonalGaussian(prior.mean, torch.where(found[:, None], left, prior.precision)), found


def _kronecker(terms: Kronecker, prior: KroneckerGaussian) -> tuple[KroneckerGaussian, Tensor]:
    outputs, inputs = prior.outputs - terms.outputs, prior.inputs - terms.inputs
    count = prior.count - terms.count
    found = (count >= 0) & _semidefinite(outputs) & _semidefinite(inputs)
    keep = found[:, None, None]
    return KroneckerGaussian(
        prior.mean,
        torch.where(keep, outputs, prior.outputs),
        torch.where(keep, inputs, prior.inputs),
        torch.where(found, count, prior.count),
        prior.isotropic,
    ), found


def _semidefinite(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values[..., 0] >= -_ROUNDING * values[..., -1].abs()
