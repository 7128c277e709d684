"""The unnormalised posterior: all that a sampling or variational scheme needs to know of a head.

A head offers `negative_log_probs(features, targets, weight)` ([..., B, tasks] at weights
[..., blocks, P]) and `blocks`; a prior offers `log_prob`. Nothing else of the model is used, so
every head works: linear ones, networks, any Pyro model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["log_joint", "log_likelihood"]


def log_likelihood(head: Head, weight: Tensor, features: Tensor, targets: Targets) -> Tensor:
    """log p(y | H, w) over the observed examples, times their weights.

    Args:
        head: the head.
        weight: [..., blocks, P]; differentiable.
        features: [B, d]; use float64 (`linalg.head_dtype`) for float64 weights.
        targets: [B, tasks].

    Returns:
        [..., blocks]: one number per task, or one in all where tasks share their weights.
    """
    nll = head.negative_log_probs(features, targets, weight)
    if targets.weight is not None:
        nll = nll * targets.weight.to(nll.dtype)
    if targets.mask is not None:
        nll = torch.where(targets.mask, nll, 0.0)
    per_task = -nll.sum(-2)
    return per_task if head.blocks == head.tasks else per_task.sum(-1, keepdim=True)


def log_joint(
    head: Head, weight: Tensor, features: Tensor, targets: Targets, prior: Posterior
) -> Tensor:
    """log p(y, w | H) = log-likelihood + log-prior, [..., blocks]; arguments as above.

    Args:
        head: the head.
        weight: [..., blocks, P]; differentiable.
        features: [B, d].
        targets: [B, tasks].
        prior: of batch shape [blocks], with a `log_prob`.
    """
    log_prior: Tensor = prior.log_prob(weight)
    return log_likelihood(head, weight, features, targets) + log_prior
