"""Adam, made for steps from Python or for captured ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Adam, Optimizer

from experiments.settings import Settings

__all__ = ["adam", "load_state"]


def adam(
    parameters: Iterable[Parameter], settings: Settings, device: torch.device, captured: bool
) -> Adam:
    """Adam with the settings' weight decay.

    Args:
        parameters: What to train.
        settings: Of the trainer.
        device: Where the parameters are.
        captured: Keep the learning rate and the number of steps on the device, as a CUDA graph
            needs; without a GPU this changes nothing.
    """
    capturable = captured and device.type == "cuda"
    rate = settings.learning_rate
    return Adam(
        parameters,
        lr=torch.tensor(rate, device=device) if capturable else rate,
        weight_decay=settings.weight_decay,
        capturable=capturable,
        fused=None if capturable else _fused(device),
    )


def load_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Restore moments and numbers of steps; how the optimiser works is its own.

    A run may go on elsewhere, so that what was captured there is stepped from Python here.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})


def _fused(device: torch.device) -> bool | None:
    """One kernel for all of it on a CPU, where the many small ones cost as much as a head."""
    return True if device.type == "cpu" else None
