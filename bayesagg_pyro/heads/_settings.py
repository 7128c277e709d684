"""Checks on the targets that a likelihood can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.targets import Targets

if TYPE_CHECKING:
    from bayesagg_pyro.heads._head import Head

__all__ = ["are_counts", "refuse_targets"]


def are_counts(values: Tensor) -> Tensor:
    """Which values are 0, 1, 2, ..., as a boolean tensor."""
    if not values.is_floating_point():
        return values >= 0
    return (values >= 0) & (values == values.floor()) & values.isfinite()


def refuse_targets(head: Head, targets: Targets, good: Tensor, wanted: str) -> None:
    """Refuse targets that are not `good`, [B, tasks].

    Raises:
        SettingError: naming the first one and what the head demands of it.
    """
    if not good.all():
        example, task = (~good).nonzero()[0].tolist()
        raise SettingError(
            f"head {head.site!r}: target of task {task}, example {example}, is "
            f"{targets.values[example, task].item()}; {wanted}"
        )
