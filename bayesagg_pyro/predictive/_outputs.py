"""The law of a head's outputs under a posterior: in closed form, or through draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro._pieces import BLOCK, CACHE, fitting, slices
from bayesagg_pyro.heads import Head, OnePredictor, Ordinal
from bayesagg_pyro.heads._linear import LinearOutputs, following
from bayesagg_pyro.posteriors import Empirical, GaussianFamily, KroneckerGaussian, Posterior

#: Draws where none are asked for.
SAMPLES = 512


def at_temperature(head: Head, posterior: Posterior) -> Head:
    """The head whose likelihood takes outputs that the temperature has divided."""
    temperature = _temperature(posterior)
    if temperature is None or not isinstance(head, Ordinal):
        return head
    return head.with_temperature(temperature)


def predictor(
    head: OnePredictor, posterior: GaussianFamily, features: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of u = hᵀw, [B, tasks], of a head with one predictor."""
    dtype = linalg.head_dtype(features.device)
    mean, variance = head.predictor_moments(features, posterior.to(features.device, dtype))
    if (temperature := _temperature(posterior)) is not None:
        mean, variance = mean / temperature, variance / temperature.square()
    # Where it is 0 so is its slope, but its root has an infinite one.
    return mean, torch.where(variance > 0, variance, 0.0) if variance.requires_grad else variance


def joint_outputs(head: Head, posterior: GaussianFamily, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, tasks, C] and covariance [B, tasks, C, C] of the outputs of one task."""
    design = head.design_matrix(features, attached=True)
    posterior = posterior.to(design.device, design.dtype)
    outputs = head.outputs_per_task
    mean = torch.einsum("bd,tcd->btc", design, posterior.mean.unflatten(-1, (outputs, -1)))
    s = posterior.covariance_matrix.unflatten(-1, (outputs, -1)).unflatten(-3, (outputs, -1))
    half = torch.einsum("tcdke,be->btcdk", s, design)
    covariance = torch.einsum("btcdk,bd->btck", half, design).expand(-1, head.tasks, -1, -1)
    if (residual := head.unexpressed(features)) is not None:
        eye = torch.eye(outputs, dtype=residual.dtype, device=residual.device)
        covariance = covariance + residual[:, None, None, None] * eye
    if (temperature := _temperature(posterior)) is not None:
        mean = mean / temperature[:, None]
        covariance = covariance / temperature[:, None, None].square()
    return mean, covariance


def drawn_outputs(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    samples: int,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Outputs at draws of the weights, [n, B, ...] in chunks; at all stored ones if Empirical.

    With a draw of what an embedding cannot express, for which stored draws are taken again until
    there are `samples`.
    """
    dtype = linalg.head_dtype(features.device)
    posterior = posterior.to(features.device, dtype)
    if generator is None:
        generator = torch.Generator(features.device).manual_seed(0)
    linear = head.is_still(LinearOutputs, "outputs")
    residual = head.unexpressed(features) if linear else None
    weight: Any = posterior.samples if isinstance(posterior, Empirical) else None
    if weight is not None and residual is not None:
        weight = weight.repeat(-(-samples // len(weight)), 1, 1)
    count = samples if weight is None else len(weight)
    each = len(features) * head.tasks * head.outputs_per_task
    # Of few rows outputs are drawn without the weights, of which there may be millions.
    by_row = None
    if linear and isinstance(posterior, KroneckerGaussian):
        by_row = posterior if len(features) < posterior.inputs.shape[-1] else None
    if weight is None and by_row is None:
        each = max(each, posterior.tasks * posterior.event_shape.numel())
    for part in slices(count, fitting(each, BLOCK)):
        size = part.stop - part.start
        with following(features):
            if by_row is not None:
                design = head.design_matrix(features, attached=True)
                outputs = by_row.sample_outputs(design, size, generator=generator)
                outputs = head.arranged(outputs)
            elif weight is not None:
                outputs = head(features.to(dtype), weight[part].detach())
            else:
                drawn = posterior.sample((size,), generator=generator)
                outputs = head(features.to(dtype), drawn.detach())
            if residual is not None:
                z = torch.empty_like(outputs).normal_(generator=generator)
                scale = residual.sqrt().reshape(-1, *[1] * (outputs.ndim - 2))
                outputs = outputs + scale * z
        if (temperature := _temperature(posterior)) is not None:
            outputs = divided(outputs, temperature)
        yield from outputs.split(fitting(each, CACHE // 2))


def divided(outputs: Tensor, temperature: Tensor) -> Tensor:
    """Drawn outputs over the temperature of each task, [tasks]."""
    # Outputs of classes are [n, B, tasks, C], without an axis for a single task.
    return outputs / (temperature if outputs.ndim == 3 else temperature[:, None])


def _temperature(posterior: Posterior) -> Tensor | None:
    return None if posterior.info is None else posterior.info.temperature
