"""Some of a head's tasks as a head of their own, so that many tasks can be worked on in chunks."""

from __future__ import annotations

import copy
from types import MethodType

from torch import Tensor, nn

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads._head import Head


def divisible(head: Head) -> bool:
    """Whether `part` knows all that belongs to one task: weights, and buffers in `per_task`.

    Methods and tensors that the object itself holds may be of all tasks.
    """
    return (
        head.blocks == head.tasks
        and not head._modules
        and not any(isinstance(own, Tensor | MethodType) for own in vars(head).values())
        and head.is_still(type(head))
        and set(head._parameters) == {"weight"}
        and set(head._buffers) <= set(head.per_task)
    )


def part(head: Head, rows: slice) -> Head:
    """A head of some of the tasks, at the same weights; for inference and moments, not training.

    Raises:
        SettingError: if the head has more than weights and buffers named in `per_task`.
    """
    if not divisible(head):
        raise SettingError(
            f"head {head.site!r}: {type(head).__name__} cannot be divided into tasks; name its "
            "buffers in per_task"
        )
    made = copy.copy(head)
    weight = head.weight.detach().unflatten(0, (head.tasks, -1))[rows]
    made.tasks = len(weight)
    made._parameters = {"weight": nn.Parameter(weight.flatten(0, 1), requires_grad=False)}
    made._buffers = {
        name: value if value is None or value.ndim == 0 else value[rows]
        for name, value in head._buffers.items()
    }
    return made
