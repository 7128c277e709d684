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
        captured: Keep the learning rate in a tensor, where a replayed step finds it; it is then
            rounded to float32.
    """
    rate = settings.learning_rate
    return Adam(
        parameters,
        lr=torch.tensor(rate, device=device) if captured else rate,
        weight_decay=settings.weight_decay,
        capturable=captured and device.type == "cuda",
        fused=True,  # one kernel; the many small ones cost as much as a head
    )


def load_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Restore moments and numbers of steps; how the optimiser works is its own.

    A run may go on elsewhere, so that what was captured there is stepped from Python here.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
