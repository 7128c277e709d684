"""Posteriors in the states of policies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesagg_pyro._state import named, part
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import GaussianFamily, Posterior

__all__ = ["kept", "layout", "loaded"]


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
