"""Powers of the precision: one for all tasks, one per task, or one per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from bayesagg_pyro.errors import TaskError
from bayesagg_pyro.gradients import GradientDistribution

__all__ = ["Power", "named", "of_values", "per_task", "powers"]

Power: TypeAlias = float | Sequence[float] | Mapping[str, float]


def named(power: Any) -> list[tuple[str, Any]]:
    if isinstance(power, Mapping):
        return [(f" of {name!r}", value) for name, value in power.items()]
    if isinstance(power, Sequence) and not isinstance(power, str):
        return [(f" of task {task}", value) for task, value in enumerate(power)]
    return [("", power)]


def powers(power: Power, grad: GradientDistribution) -> Tensor | float:
    """One power, or a tensor [tasks, 1, 1]."""
    groups = {name: rows.stop - rows.start for name, rows in grad.groups.items()}
    return of_values(per_task(power, groups, grad.tasks), grad)


def of_values(values: list[float], grad: GradientDistribution) -> Tensor | float:
    if len(set(values)) == 1:
        return float(values[0])
    return grad.like.new_tensor(values).reshape(-1, 1, 1)


def per_task(power: Power, groups: Mapping[str, int], tasks: int) -> list[float]:
    """One power for each task, heads in order.

    Raises:
        TaskError: if names or numbers do not match.
    """
    if isinstance(power, Mapping):
        missing = [name for name in groups if name not in power]
        extra = [name for name in power if name not in groups]
        if missing or extra or not groups:
            raise TaskError(
                f"powers are given for {sorted(power)}, the gradients belong to "
                f"{sorted(groups) or 'unnamed tasks'}: missing {missing}, unknown {extra}; "
                "join heads with gradients.cat({name: grad, ...})"
            )
        return [power[name] for name, size in groups.items() for _ in range(size)]
    if isinstance(power, Sequence):
        if len(power) != tasks:
            raise TaskError(
                f"{len(power)} powers are given for {tasks} tasks: give one, or one for each"
            )
        return list(power)
    return [power] * tasks
