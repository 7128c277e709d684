"""What a batch of a linear Gaussian model adds up to, and the posterior that such sums make."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import BLOCK, fitting, slices
from bayesagg_pyro.errors import DtypeError
from bayesagg_pyro.heads import Gaussian, Head
from bayesagg_pyro.heads._head import Aspect
from bayesagg_pyro.posteriors import Gaussian as GaussianPosterior
from bayesagg_pyro.targets import Targets, alike

#: What the sums of hᵀh and h y stand for, whatever the design is.
GAUSSIAN: tuple[Aspect, ...] = ("outputs", "likelihood", "weight")


def gaussian(head: Head, what: str) -> Gaussian:
    """The head, if y = hᵀ w + ε with ε ~ N(0, τ²) is its model.

    Args:
        head: any.
        what: who asks for that, for the message.

    Raises:
        DtypeError: naming what the head is, or has changed, and the remedy.
    """
    if isinstance(head, Gaussian):
        if head.is_still(Gaussian, *GAUSSIAN):
            return head
        reason = f"and {head.changed(Gaussian, *GAUSSIAN)}"
    else:
        reason = f"not {type(head).__name__}"
    raise DtypeError(
        f"head {head.site!r}: {what} is exact for Gaussian heads only, {reason}; choose another "
        "scheme from bayesagg_pyro.inference, such as Laplace or TaylorGGN"
    )


class Sums(NamedTuple):
    """Σ ω h hᵀ, [1 or tasks, D, D]; Σ ω h y, [tasks, D]; Σ ω y², [tasks]."""

    gram: Tensor
    moment: Tensor
    square: Tensor


def sums(head: Head, features: Tensor, targets: Targets, point: Tensor | None = None) -> Sums:
    """What a batch adds up to, at so many rows at a time that their design is no large thing.

    Args:
        head: gives the design.
        features: [B, d].
        targets: [B, tasks].
        point: weights whose residuals y − hᵀw take the place of y, [tasks, D].
    """
    size = fitting(head.weight_size, BLOCK)
    if len(features) <= size:
        return _sums(head, features, targets, point)
    found = [
        _sums(head, features[rows], targets.examples(rows), point)
        for rows in slices(len(features), size)
    ]
    return Sums(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))


def _sums(head: Head, features: Tensor, targets: Targets, point: Tensor | None) -> Sums:
    design = head.design_matrix(features)
    values, factor = targets.values.to(design.dtype), targets.factor(design.dtype)
    if point is not None:
        values = values - design @ point.mT
    weighted = values if factor is None else values * factor
    shared = factor[:, :1] if factor is not None and alike(factor) else factor
    return Sums(linalg.gram(design, shared), weighted.mT @ design, (weighted * values).sum(0))


def noise_precision(head: Gaussian, like: Tensor) -> Tensor:
    """τ⁻², [] or [tasks]."""
    return head.noise_scale.to(like.device, like.dtype).square().reciprocal()


def condition(
    head: Head,
    prior: GaussianPosterior,
    total: Tensor,
    innovation: Tensor,
    factor: linalg.Factor | None = None,
) -> GaussianPosterior:
    """N(m_p + Λ⁻¹ innovation, Λ⁻¹) for Λ = `total`, [1 or tasks, P, P].

    Raises:
        NumericalError: if Λ cannot be factored.
    """
    if factor is None:
        factor = linalg.cholesky(total, what=f"posterior precision of head {head.site!r}")
    mean = prior.mean + linalg.solve(factor.tril, innovation)
    return GaussianPosterior(mean, total, precision_tril=factor.tril, jitter=factor.jitter)
