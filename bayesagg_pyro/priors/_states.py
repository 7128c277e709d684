"""What trackers put into a state_dict and take out of one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro._state import named, part
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior
from bayesagg_pyro.priors._policy import Policy

__all__ = ["kept", "layout", "loaded", "of_policy"]


def kept(name: str, posterior: Posterior | None) -> dict[str, Tensor]:
    """A posterior's state behind its name; {} for None."""
    return {} if posterior is None else named(name, posterior.state_dict())


def loaded(head: Head, state: Mapping[str, Tensor], name: str) -> Posterior | None:
    """The posterior of that name again, on the head's device; None if there is none.

    Raises:
        ShapeError: if it is over the weights of another head.
        BayesAggError: if it is no distribution, see `Posterior.from_state_dict`.
    """
    own = part(state, name)
    if not own:
        return None
    found = Posterior.from_state_dict(own, head.weight.device)
    head.check_weights(found, f"saved {name}")
    return found


def layout(posterior: GaussianFamily) -> tuple[type, dict[str, torch.Size]]:
    """Kind and shapes: those of one layout can be copied into one another."""
    shapes = {name: tensor.shape for name, tensor in posterior.tensors().items()}
    return type(posterior), shapes


def of_policy(head: Head, policy: Policy, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a tracker of this policy saved behind the policy's name.

    Raises:
        StateError: for the state of another policy, naming both.
    """
    own, others = type(policy).__name__, {name.partition(".")[0] for name in state}
    if others - {own}:
        raise StateError(
            f"head {head.site!r} has the prior policy {own}, the saved state is of "
            f"{sorted(others)}; make the engine with the policy as saved"
        )
    return part(state, own)
