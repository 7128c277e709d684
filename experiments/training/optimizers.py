"""Adam, made for steps from Python or for captured ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam, Optimizer

from experiments.settings import Settings
from models.files import finite


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

    Raises:
        ValueError: The state is not of these parameters, or not finite.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, moments in state.items():
        shape = parameters[index].shape if index in range(len(parameters)) else None
        for name, wanted in (("step", ()), ("exp_avg", shape), ("exp_avg_sq", shape)):
            value = moments.get(name) if isinstance(moments, dict) else None
            if not (finite(value) and isinstance(value, Tensor) and value.shape == wanted):
                raise ValueError(f"{name} of parameter {index} does not fit")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
