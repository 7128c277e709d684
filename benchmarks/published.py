"""The published way for classification, written anew from the paper's description: the reference.

One joint Gaussian over the weights of all outputs ((K·D)² numbers), 1,024 joint samples, and their
gradients as one [J, B, T, d] tensor with E[g²] − E[g]² for the variance (eqs post_cls, moments_mc).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

#: J.
SAMPLES = 1024
#: s.
_POWER = 5e-4


def published_binary_step(
    features: Tensor, targets: Tensor, samples: int = SAMPLES
) -> Callable[[], None]:
    """A callable that makes one head-stage step by the joint, sampled algorithm.

    Args:
        features: [B, d], a leaf.
        targets: [B, T].
        samples: J.
    """
    return partial(_step, _start(features, targets.shape[1]), features, targets, samples)


def published_softmax_step(
    features: Tensor, targets: Tensor, samples: int = SAMPLES
) -> Callable[[], None]:
    """The same for one task of C classes; `targets` are indices [B, 1]."""
    hot = one_hot(targets[:, 0])
    classes = int(targets.max()) + 1
    return partial(_step, _start(features, classes), features, hot, samples, softmax=True)


def _start(features: Tensor, outputs: int) -> Tensor:
    size = features.shape[1]
    return torch.randn(outputs, size + 1) / size**0.5


def _step(
    weight: Tensor, features: Tensor, targets: Tensor, samples: int, *, softmax: bool = False
) -> None:
    """One step at these weights, [K, D], towards targets [B, K]."""
    (batch, d), (outputs, size) = features.shape, weight.shape
    joint = outputs * size
    prior_precision = torch.eye(joint) * 100
    prior_mean = torch.zeros(joint)
    with torch.no_grad():
        design = torch.cat([features, torch.ones(batch, 1)], 1)
        logits = design @ weight.T
        p = logits.softmax(-1) if softmax else logits.sigmoid()
        # The Jacobian of all outputs in all weights, [B, K, K·D], as published.
        jacobian = torch.zeros(batch, outputs, outputs, size)
        jacobian.diagonal(dim1=1, dim2=2).copy_(design[..., None].expand(-1, -1, outputs))
        jacobian = jacobian.reshape(batch, outputs, joint)
        if softmax:  # (diag(p) − p pᵀ) J
            curved = p[..., None] * (jacobian - p[:, None] @ jacobian)
        else:
            curved = (p * (1 - p))[..., None] * jacobian
        precision = jacobian.flatten(0, 1).T @ curved.flatten(0, 1) + prior_precision
        flat = weight.reshape(-1)
        gradient = jacobian.flatten(0, 1).T @ (p - targets).reshape(-1)
        gradient = gradient + prior_precision @ (flat - prior_mean)
        factor = torch.linalg.cholesky(precision)
        mean = flat - torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        covariance = torch.cholesky_inverse(factor)
        scale = torch.linalg.cholesky(covariance)
        drawn = (mean + torch.randn(samples, joint) @ scale.T).reshape(samples, outputs, size)
        logits = torch.einsum("bd,jkd->jbk", design, drawn)
        if softmax:
            residual = logits.softmax(-1) - targets
            g = (residual @ drawn[..., :d])[:, :, None]  # [J, B, 1, d]
        else:
            g = (logits.sigmoid() - targets)[..., None] * drawn[:, None, :, :d]  # [J, B, T, d]
        first = g.mean(0)
        variance = (g.square().mean(0) - first.square()).clamp(min=1e-8)
        alpha = variance.pow(-_POWER)
        alpha = alpha / alpha.sum(1, keepdim=True)
        direction = (alpha * first).sum(1)
    features.grad = direction / batch
