"""Gradients of a head's loss at sampled weights: what any head and any posterior can give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["gradient_sampler", "sampled_covariance", "sampled_gradients"]


def sampled_gradients(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> Tensor:
    """∂ℓ_tb/∂h_b at given weights, by automatic differentiation of `head.loss`.

    Works for every head whose outputs of different examples and tasks do not mix, linear or not:
    each example's features are copied per sample and task, so that one backward pass gives all.

    Args:
        head: the head.
        weight: [S, tasks, P].
        features: [B, d].
        targets: [B, tasks].

    Returns:
        [S, tasks, B, d] in the weights' dtype; 0 where a target is not observed.
    """
    values = targets.values
    if values.is_floating_point():
        values = values.to(weight.dtype)

    def losses(h: Tensor, w: Tensor) -> Tensor:
        loss = head.loss(head(h, w), values)  # [B, tasks]
        if targets.mask is not None:
            loss = torch.where(targets.mask, loss, 0.0)
        return loss.sum(0)  # examples do not mix: the sum's gradient is each example's own

    per_task = torch.func.jacrev(losses)  # [tasks, B, d]
    gradients: Tensor = torch.func.vmap(per_task, in_dims=(None, 0))(
        features.detach().to(weight.dtype), weight
    )
    return gradients.detach()


def gradient_sampler(
    head: Head, posterior: Posterior, features: Tensor, targets: Targets
) -> Callable[[int, torch.Generator | None], Tensor]:
    """A function (count, generator) -> [count, tasks, B, d] in the features' dtype."""

    def draw(count: int, generator: torch.Generator | None) -> Tensor:
        weight = posterior.sample((count,), generator=generator)
        return sampled_gradients(head, weight, features, targets).to(features.dtype)

    return draw


def sampled_covariance(
    head: Head,
    posterior: Posterior,
    features: Tensor,
    targets: Targets,
    samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Unbiased full covariance over fresh draws of the weights, [tasks, B, d, d]."""
    weight = posterior.sample((samples,), generator=generator)
    centred = sampled_gradients(head, weight, features, targets)
    centred = centred - centred.mean(0)
    return torch.einsum("stbd,stbe->tbde", centred, centred) / (samples - 1)
