"""Priors beyond one variance: one for weights and one for biases, diagonal, dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._settings import numbers, positive_each
from bayesagg_pyro.errors import NumericalError, SettingError, ShapeError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import DiagonalGaussian, Gaussian

#: What is taken for a tensor of numbers.
Numbers: TypeAlias = float | Sequence[float] | Tensor


def weight_and_bias(head: Head, weight: Numbers, bias: Numbers) -> DiagonalGaussian:
    """N(0, ·) with one variance for the weights of the features and another for the bias.

    A large bias variance lets a task's level float while its slopes stay regularised.

    Args:
        head: whose weights; it must have a bias.
        weight: variance of each weight of a feature, one number or one per task.
        bias: variance of the bias, likewise.

    Raises:
        SettingError: if a variance is not positive and finite, or the head has no bias.
        ShapeError: if there is neither one variance nor one per task.
    """
    if not head.bias:
        raise SettingError(
            f"head {head.site!r} has no bias: use priors.isotropic, or make the head with bias=True"
        )
    tasks, size = head.point().shape
    slopes = _per_task(head, weight, "the variance of the weights")
    levels = _per_task(head, bias, "the variance of the bias")
    rows = slopes.expand(tasks, size).unflatten(-1, (head.outputs_per_task, -1)).clone()
    rows[..., -1] = levels
    return _independent(head, rows.flatten(1))


def diagonal(head: Head, variance: Numbers, *, mean: Numbers = 0.0) -> DiagonalGaussian:
    """N(mean, diag(variance)) for each task.

    Args:
        head: whose weights.
        variance: of each weight: one number, [P] for all tasks, or [tasks, P]. P runs over the
            outputs of a task, within an output over the features, bias last.
        mean: likewise.

    Raises:
        SettingError: if a variance is not positive and finite, or a mean not finite.
        ShapeError: if a shape does not fit.
    """
    given = _numbers(head, variance)
    if not (given.isfinite() & (given > 0)).all():
        raise SettingError(
            f"head {head.site!r}: prior variances must be positive and finite, not {given}"
        )
    found = _fitted(head, given, "variances")
    return _independent(head, found, _mean(head, mean))


def dense(head: Head, covariance: Tensor, *, mean: Numbers = 0.0) -> Gaussian:
    """N(mean, covariance) for each task.

    Args:
        head: whose weights.
        covariance: [P, P] for all tasks, or [tasks, P, P], symmetric positive definite; order of
            the weights as in `diagonal`.
        mean: one number, [P] or [tasks, P].

    Raises:
        ShapeError: if a shape does not fit.
        SettingError: if the covariance is not symmetric and finite.
        NumericalError: if it is not positive definite.
    """
    matrix = _numbers(head, covariance)
    tasks, size = head.point().shape
    if matrix.shape not in ((size, size), (tasks, size, size)):
        raise ShapeError(
            f"head {head.site!r}: a dense prior covariance must be [{size}, {size}] or "
            f"[{tasks}, {size}, {size}], not {list(matrix.shape)}"
        )
    matrix = matrix.reshape(-1, size, size)
    asymmetry = (matrix - matrix.mT).abs().amax()
    scale = torch.finfo(matrix.dtype).eps ** 0.5 * matrix.abs().amax()
    if not matrix.isfinite().all() or asymmetry > scale:
        raise SettingError(
            f"head {head.site!r}: a prior covariance must be finite and symmetric, but differs "
            f"from its transpose by up to {asymmetry:.3g}; pass 0.5 * (covariance + covariance.mT)"
        )
    tril, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        raise NumericalError(
            f"head {head.site!r}: the prior covariance is not positive definite (smallest "
            f"eigenvalue {torch.linalg.eigvalsh(matrix).amin():.3g})"
        )
    precision = torch.cholesky_inverse(tril)
    return Gaussian(_mean(head, mean), precision, outputs_per_task=head.outputs_per_task)


def _independent(head: Head, variance: Tensor, mean: Tensor | None = None) -> DiagonalGaussian:
    return DiagonalGaussian(
        torch.zeros_like(variance) if mean is None else mean,
        variance.reciprocal(),
        outputs_per_task=head.outputs_per_task,
    )


def _mean(head: Head, mean: Numbers) -> Tensor:
    value = _numbers(head, mean)
    if not value.isfinite().all():
        raise SettingError(f"head {head.site!r}: the prior mean must be finite")
    return _fitted(head, value, "means")


def _fitted(head: Head, value: Tensor, what: str) -> Tensor:
    tasks, size = head.point().shape
    if value.shape not in ((), (size,), (tasks, size)):
        raise ShapeError(
            f"head {head.site!r}: prior {what} must be one number, [{size}] or [{tasks}, {size}] "
            f"(tasks, weights of one task), not {list(value.shape)}"
        )
    return value.expand(tasks, size).clone()


def _per_task(head: Head, value: Numbers, what: str) -> Tensor:
    """One positive number or one per task, as [tasks or 1, 1]."""
    found = positive_each(f"head {head.site!r}: {what}", value, len(head.point()))
    return _numbers(head, found).reshape(-1, 1)


def _numbers(head: Head, value: Numbers) -> Tensor:
    device = head.weight.device
    found = numbers(f"head {head.site!r}: a prior", value)
    return found.to(device, linalg.head_dtype(device))
