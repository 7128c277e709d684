"""The joint law of one task's predictor u and of the vector du/dh, for every example.

A linear head has u = hᵀ w and du/dh = w. With an embedding, u = φ(h)ᵀ w and du/dh = Jᵀ w with
J = ∂φ/∂h: still linear in w, so that with w ~ N(m, S)

    E[du/dh] = Jᵀ m,   Cov(du/dh) = Jᵀ S J,   Cov(du/dh, u) = Jᵀ S φ,

and every moment formula for g = f(u) du/dh holds with these in place of m, S and S h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from bayesagg_pyro._pieces import BLOCK, fitting
from bayesagg_pyro.heads import Categorical, Head, OnePredictor
from bayesagg_pyro.posteriors import GaussianFamily


def has_one_predictor(head: Head) -> TypeGuard[OnePredictor]:
    """Whether loss and likelihood of a task are functions of one linear predictor."""
    return head.is_still(OnePredictor, "outputs", "design", "pointwise")


def is_softmax(head: Head) -> TypeGuard[Categorical]:
    """Whether it is a softmax of outputs that are linear in the features."""
    return head.is_still(Categorical) and head.embedding is None


class PredictorTerms(NamedTuple):
    """Second-order description of (u, du/dh); d runs over the features h."""

    slope_mean: Tensor  #: E[du/dh], [tasks, 1 or B, d]
    slope_variance: Tensor  #: its variances, [tasks or 1, 1 or B, d]
    cross: Tensor  #: Cov(du/dh, u), [tasks or 1, B, d]
    mean: Tensor  #: E[u], [B, tasks]
    variance: Tensor  #: Var[u], [tasks or 1, B]
    covariance: Callable[[], Tensor]  #: of du/dh, [tasks or 1, 1 or B, d, d]


def predictor_terms(
    head: Head, posterior: GaussianFamily, features: Tensor, dtype: torch.dtype | None = None
) -> PredictorTerms:
    """For a head of one predictor per task, linear or with an embedding.

    Args:
        head: the head.
        posterior: over its weights, in the precision and on the device of head algebra.
        features: [B, d].
        dtype: of a linear head's cross-covariances, as in `GaussianFamily.project`.
    """
    design = head.design_matrix(features)
    linear = head.embedding is None
    cross, variance = posterior.project(design, dtype if linear else None)
    weight = posterior.mean
    mean = design @ weight.mT
    if head.embedding is None:
        d = head.in_features
        return PredictorTerms(
            weight[:, None, :d],
            posterior.variance[: cross.shape[0], None, :d],
            cross[..., :d],
            mean,
            variance,
            lambda: posterior.covariance_matrix[:, None, :d, :d],
        )
    jacobian = head.embedding.jacobian(features.detach().to(design.dtype))  # [B, k, d]
    k = head.embedding.out_features
    return PredictorTerms(
        pull_back(jacobian, weight[:, None, :k]),
        _pulled_variance(jacobian, posterior, design.shape[-1]),
        pull_back(jacobian, cross[..., :k]),
        mean,
        variance,
        lambda: jacobian.mT @ posterior.covariance_matrix[:, None, :k, :k] @ jacobian,
    )


def pull_back(jacobian: Tensor, gradient: Tensor) -> Tensor:
    """Jᵀ applied to gradients in φ: [B, k, d] and [..., 1 or B, k] to [..., B, d]."""
    return torch.einsum(
        "bkd,...bk->...bd", jacobian, gradient.expand(*gradient.shape[:-2], len(jacobian), -1)
    )


def _pulled_variance(jacobian: Tensor, posterior: GaussianFamily, size: int) -> Tensor:
    """Diagonal of Jᵀ S J, [tasks or 1, B, d]: the variance of the predictor along each column."""
    k, d = jacobian.shape[1:]
    parts = []
    for part in jacobian.split(fitting(posterior.tasks * d * size, BLOCK)):
        columns = part.mT.reshape(-1, k)
        columns = torch.cat([columns, columns.new_zeros(len(columns), size - k)], 1)
        parts.append(posterior.project(columns).variance.unflatten(-1, (len(part), d)))
    return torch.cat(parts, 1)
