"""Checks on the settings of a likelihood, and on the targets that it can take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesagg_pyro.errors import SettingError, ShapeError
from bayesagg_pyro.targets import Targets

if TYPE_CHECKING:
    from bayesagg_pyro.heads._head import Head

__all__ = ["are_counts", "positive_setting", "refuse_targets"]


def positive_setting(name: str, value: float | Sequence[float] | Tensor, tasks: int) -> Tensor:
    """A positive number, or one per task, as a float64 tensor [] or [tasks].

    Raises:
        ShapeError: if there is neither one number nor one per task.
        SettingError: if one is not positive and finite.
    """
    # On the CPU, to be looked at while modules are built on the meta device too.
    tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    if tensor.shape not in ((), (tasks,)):
        raise ShapeError(
            f"{name} must be one number or one for each of {tasks} tasks, "
            f"not of shape {list(tensor.shape)}"
        )
    if not (tensor.isfinite() & (tensor > 0)).all():
        raise SettingError(f"{name} must be positive and finite, not {value}")
    return tensor.to(torch.get_default_device())


def are_counts(values: Tensor) -> Tensor:
    """Which values are 0, 1, 2, ..., as a boolean tensor."""
    if not values.is_floating_point():
        return values >= 0
    return (values >= 0) & (values == values.floor()) & values.isfinite()


def refuse_targets(head: Head, targets: Targets, good: Tensor, demand: str) -> None:
    """Refuse targets that are not `good`, [B, tasks].

    Raises:
        SettingError: naming the first one and what the head demands of it.
    """
    if not good.all():
        example, task = (~good).nonzero()[0].tolist()
        raise SettingError(
            f"head {head.site!r}: target of task {task}, example {example}, is "
            f"{targets.values[example, task].item()}; {demand}"
        )
