"""Where the engine meets the backbone: features' dtype, and their gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesagg_pyro.errors import StateError

__all__ = ["into_backbone", "reported_dtype"]


def reported_dtype(features: Tensor) -> torch.dtype:
    """Of predictions and losses: the features', float32 for lower precisions."""
    return torch.promote_types(features.dtype, torch.float32)


def into_backbone(features: Tensor, update: Tensor) -> None:
    """Propagate the update of the features.

    Raises:
        StateError: if the features' graph has been used up by an earlier call.
    """
    try:
        features.backward(update)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise StateError(
            "these features have been through backward() already, which frees their graph; "
            "compute them anew for each call"
        ) from error
