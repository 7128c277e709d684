"""Handing the batches of `update_prior(batches=...)` to the priors that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.errors import DtypeError, StateError
from bayesagg_pyro.priors._policy import Tracker
from bayesagg_pyro.targets import RawTargets

__all__ = ["Batches", "show"]

#: Pairs of features [B, d] and {head: targets}.
Batches = Iterable[tuple[Tensor, Mapping[str, RawTargets]]]


def show(
    trackers: Mapping[str, Tracker],
    batches: Batches | None,
    parse: Callable[[Tensor, Mapping[str, RawTargets]], Any],
    *,
    everyone: bool = False,
) -> None:
    """Go through the batches once, without gradients, until no prior wants more.

    Args:
        trackers: {name: tracker}.
        batches: what the user gave, if anything.
        parse: checks features and targets; gives an object with `features`, `observed`, `valid`.
        everyone: whether all trackers are shown the batches, or those alone that take them.

    Raises:
        StateError: if batches are missing, or no prior takes any.
        DtypeError: if an item is no pair.
    """
    takers = {n: tracker for n, tracker in trackers.items() if everyone or tracker.takes_batches}
    if batches is None:
        if takers:
            raise StateError(
                f"the priors of {list(takers)} are made of fresh batches: call update_prior("
                "batches=((backbone(x), {name: y}) for x, y in loader))"
            )
        return
    if not takers:
        raise StateError(
            "batches were given, but every prior is made of what training collected; use "
            "priors.Fresh() for priors of fresh batches, or call update_prior() alone"
        )
    for tracker in takers.values():
        tracker.restart()
    with torch.no_grad():
        for item in batches:
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DtypeError(
                    "batches must give pairs (features, {name: targets}), "
                    f"not {type(item).__name__}"
                )
            features, targets = item
            batch = parse(features, targets)
            wanted = [
                tracker.show(batch.features.detach(), batch.observed[name], batch.valid)
                for name, tracker in takers.items()
            ]
            if not any(wanted):
                break
