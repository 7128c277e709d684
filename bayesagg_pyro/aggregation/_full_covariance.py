"""Matrices for weights: g = (Σ Λ_t)⁻¹ Σ Λ_t μ_t with Λ_t = Cov[g_t]⁻¹."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.aggregation._aggregation import Aggregated, observed_weights
from bayesagg_pyro.gradients import GradientDistribution
from bayesagg_pyro.gradients._distribution import averaged


def weighed_by_matrices(grad: GradientDistribution, by_dimension: bool) -> Aggregated:
    """Direction, and the diagonals of the weight matrices.

    Args:
        grad: [tasks, B, d], with covariances.
        by_dimension: whether these are averaged over the batch, or each example has its own.
    """
    device, dtype = grad.mean.device, grad.mean.dtype
    covariance = grad.covariance_matrix
    if by_dimension:
        covariance = averaged(covariance, grad.labelled())
    covariance = covariance.to(linalg.head_dtype(device))
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=device)
    if grad.observed is None:
        observed = covariance.new_ones(covariance.shape[:2])[..., None, None]
    else:
        seen = grad.observed.any(1, keepdim=True) if by_dimension else grad.observed
        observed = seen.to(covariance.dtype)[..., None, None]
        # Any factorable matrix will do where nothing is observed.
        covariance = torch.where(observed > 0, covariance, eye)
    covariance = _uncertain(covariance, observed > 0)
    factor, jitter = linalg.cholesky(covariance, what="covariance of a gradient")
    precision = torch.cholesky_inverse(factor) * observed  # [tasks, B or 1, d, d]
    total = precision.sum(0)
    present = observed.sum(0)
    total = torch.where(present > 0, total, eye)
    total_factor, total_jitter = linalg.cholesky(total, what="summed precision of gradients")
    matrices = torch.cholesky_solve(precision, total_factor) * (present / grad.tasks)
    scale = grad.loss_scale()
    mean = grad.mean if scale is None else grad.mean * scale  # zero where not observed
    direction = torch.einsum("tbde,tbe->bd", matrices, mean.to(matrices.dtype))
    return Aggregated(
        direction.to(dtype),
        observed_weights(matrices.diagonal(dim1=-2, dim2=-1).to(dtype), grad),
        torch.maximum(jitter.amax(), total_jitter.amax()),
        grad.observed,
    )


def _uncertain(covariance: Tensor, observed: Tensor) -> Tensor:
    """Replace covariances of 0 by tiny ones, so that all can be factored.

    A certain task gets all the weight but 1e-12, or shares it with others as certain.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    certain = (variance == 0) & observed
    least = torch.where((variance > 0) & observed, variance, torch.inf).amin(0)
    smallest = 1e3 * torch.finfo(covariance.dtype).tiny  # that has an inverse
    nearly = torch.where(least.isinf(), 1.0, (1e-12 * least).clamp(min=smallest))
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.where(certain, nearly * eye, covariance)
