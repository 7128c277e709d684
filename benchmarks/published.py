"""The published way for binary tasks, written anew from the paper's description: the reference.

One joint Gaussian over the weights of all tasks ((T·D)² numbers), 1,024 joint samples, and their
gradients as one [J, B, T, d] tensor with E[g²] − E[g]² for the variance (eqs post_cls, moments_mc).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["published_binary_step"]


def published_binary_step(
    features: Tensor, targets: Tensor, samples: int = 1024, power: float = 5e-4
) -> Callable[[], None]:
    """A callable that makes one head-stage step by the joint, sampled algorithm.

    Args:
        features: [B, d], a leaf.
        targets: [B, T].
        samples: J.
        power: s.
    """
    batch, d = features.shape
    tasks = targets.shape[1]
    size = d + 1
    joint = tasks * size
    prior_precision = torch.eye(joint) * 100
    prior_mean = torch.zeros(joint)
    weight = torch.randn(tasks, size) / d**0.5

    def call() -> None:
        with torch.no_grad():
            design = torch.cat([features, torch.ones(batch, 1)], 1)
            p = torch.sigmoid(design @ weight.T)
            # The Jacobian of all outputs in all weights, [B, T, T·D], as published.
            jacobian = torch.zeros(batch, tasks, tasks, size)
            jacobian.diagonal(dim1=1, dim2=2).copy_(design[..., None].expand(-1, -1, tasks))
            jacobian = jacobian.reshape(batch * tasks, joint)
            curvature = (p * (1 - p)).reshape(-1, 1)
            precision = jacobian.T @ (curvature * jacobian) + prior_precision
            flat = weight.reshape(-1)
            gradient = jacobian.T @ (p - targets).reshape(-1)
            gradient = gradient + prior_precision @ (flat - prior_mean)
            factor = torch.linalg.cholesky(precision)
            mean = flat - torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            covariance = torch.cholesky_inverse(factor)
            scale = torch.linalg.cholesky(covariance)
            drawn = (mean + torch.randn(samples, joint) @ scale.T).reshape(samples, tasks, size)
            residual = torch.sigmoid(torch.einsum("bd,jtd->jbt", design, drawn)) - targets
            g = residual[..., None] * drawn[:, None, :, :d]  # [J, B, T, d]
            first = g.mean(0)
            variance = (g.square().mean(0) - first.square()).clamp(min=1e-8)
            alpha = variance.pow(-power)
            alpha = alpha / alpha.sum(1, keepdim=True)
            direction = (alpha * first).sum(1)
        features.grad = direction / batch

    return call
