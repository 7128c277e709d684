"""A head as a Pyro model: weights from a prior, targets from the likelihood."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from bayesagg_pyro.posteriors import isotropic
from bayesagg_pyro.targets import RawTargets, Targets

if TYPE_CHECKING:
    from bayesagg_pyro.heads._head import Head


def prior_over_weights(head: Head, prior: Any, features: Tensor) -> Any:
    """The prior given, or N(0, prior_variance · I) for None, in the features' place and dtype."""
    if prior is None:
        prior = isotropic(head, head.prior_variance)
    return prior.to(device=features.device, dtype=features.dtype)


def sample_targets(head: Head, features: Tensor, targets: RawTargets | None, prior: Any) -> Tensor:
    """Run the model; arguments and sites as `Head.model` tells."""
    prior = prior_over_weights(head, prior, features)
    observed = None if targets is None else head.parse_targets(targets, len(features))
    task_plate = pyro.plate(f"{head.site}.tasks", head.tasks, dim=-1)
    shared = pyro.plate(f"{head.site}.weights", head.blocks, dim=-1)
    with task_plate if head.blocks == head.tasks else shared:
        weight = pyro.sample(f"{head.site}.weight", prior)
    if weight.ndim > 2:  # drawn in parallel: [S, 1, tasks, P], the 1 standing for the examples
        weight = weight.squeeze(-3)
    likelihood = head.likelihood(head(features, weight))
    examples = pyro.plate(f"{head.site}.examples", len(features), dim=-2)
    obs = None
    contexts: list[AbstractContextManager[Any]] = [examples, task_plate]
    if observed is not None:
        obs = observed.values
        if head.target_kind != "class":
            obs = obs.to(features.dtype)
        contexts += _tempering(observed, head.target_weight(observed.values), features.dtype)
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        drawn: Tensor = pyro.sample(f"{head.site}.targets", likelihood, obs=obs)
    return drawn


def _tempering(
    observed: Targets, target_weight: Tensor | None, dtype: torch.dtype
) -> list[AbstractContextManager[Any]]:
    """Pyro contexts that mask and weigh the log-likelihood of each example."""
    factor = observed.factor(dtype)
    if target_weight is not None:
        weight = target_weight.to(dtype)
        factor = weight if factor is None else factor * weight
    if factor is None:
        return []
    # Pyro scales by positive numbers only; zeros are masked.
    scale = torch.where(factor > 0, factor, 1.0)
    mask: Any = factor > 0
    return [poutine.mask(mask=mask), poutine.scale(scale=scale)]
