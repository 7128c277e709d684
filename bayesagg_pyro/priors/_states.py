"""What trackers put into a state_dict and take out of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.priors._policy import Policy

__all__ = ["check_policy", "layout", "loaded", "saved"]


def saved(posterior: Posterior | None) -> dict[str, Any] | None:
    """A posterior's state, apart from tensors that may be renewed in place."""
    if posterior is None:
        return None
    state = posterior.state_dict()
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def loaded(head: Head, state: dict[str, Any] | None, what: str) -> Posterior | None:
    """The posterior again, on the head's device.

    Raises:
        ShapeError: if it is over the weights of another head.
    """
    if state is None:
        return None
    found = Posterior.from_state_dict(state, head.weight.device)
    head.check_weights(found, what)
    return found


def layout(posterior: GaussianFamily) -> tuple[type, dict[str, torch.Size]]:
    """Kind and shapes: those of one layout can be copied into one another."""
    shapes = {name: tensor.shape for name, tensor in posterior.tensors().items()}
    return type(posterior), shapes


def check_policy(head: Head, policy: Policy, state: dict[str, Any]) -> None:
    """Refuse the state of another policy.

    Raises:
        StateError: naming both.
    """
    own, other = type(policy).__name__, state.get("policy", "FullData")
    if own != other:
        raise StateError(
            f"head {head.site!r} has the prior policy {own}, the saved state is of {other}; make "
            "the engine with the policy as saved"
        )
