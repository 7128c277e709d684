"""A batch on its way through a call of the engine, and the batches that users hand over."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.errors import DtypeError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import RawTargets, Targets
from bayesagg_pyro.validity import CHECKED, Validity

__all__ = ["Batch", "Batches", "show"]

#: Pairs of features [B, d] and {head: targets}.
Batches: TypeAlias = Iterable[tuple[Tensor, Mapping[str, RawTargets]]]


@dataclass(frozen=True)
class Batch:
    """A batch with parsed targets.

    Attributes:
        features: [B, d].
        targets: {name: parsed targets}.
        validity: whether its values are to be believed.
        rows: which of the examples are this process's own, and
        processes: how many share the batch.
    """

    features: Tensor
    targets: Mapping[str, Targets]
    validity: Validity = CHECKED
    rows: slice | None = None
    processes: int = 1

    def cleaned(self, heads: Mapping[str, Head]) -> Batch:
        """The batch, or harmless values where it is bad: 0 · NaN would still be NaN."""
        if self.validity.now:
            return self
        keep = self.validity.keep_targets
        targets = {name: keep(own, heads[name].filler) for name, own in self.targets.items()}
        return replace(self, features=self.validity.keep(self.features, 0.0), targets=targets)

    def reported(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Losses as users see them: NaN for tasks without a label, and for a bad batch."""
        return {
            name: self.validity.keep(_where_labelled(loss.detach(), self.targets[name]), math.nan)
            for name, loss in losses.items()
        }

    def own(self, update: Tensor) -> Tensor:
        """This process's rows of an update of all features, for a backbone that is averaged."""
        return update if self.rows is None else update[self.rows] * self.processes


def _where_labelled(loss: Tensor, targets: Targets) -> Tensor:
    return loss if targets.mask is None else torch.where(targets.counts() > 0, loss, math.nan)


def show(
    slots: Collection[Slot],
    batches: Batches | None,
    parse: Callable[[Tensor, Mapping[str, RawTargets]], Batch],
    *,
    everyone: bool = False,
) -> None:
    """Go through the batches once, without gradients, until no prior wants more.

    Args:
        slots: what belongs to each head.
        batches: what the user gave, if anything.
        parse: checks features and targets.
        everyone: whether all priors are shown the batches, or those alone that take them.

    Raises:
        StateError: if batches are missing, or no prior takes any.
        DtypeError: if an item is no pair.
    """
    takers = [slot for slot in slots if everyone or slot.tracker.takes_batches]
    if batches is None:
        if takers:
            raise StateError(
                f"the priors of {[slot.name for slot in takers]} are made of fresh batches: call "
                "update_prior(batches=((backbone(x), {name: y}) for x, y in loader))"
            )
        return
    if not takers:
        raise StateError(
            "batches were given, but every prior is made of what training collected; use "
            "priors.Fresh() for priors of fresh batches, or call update_prior() alone"
        )
    for slot in takers:
        slot.tracker.restart()
    with torch.no_grad():
        for item in batches:
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DtypeError(
                    "batches must give pairs (features, {name: targets}), "
                    f"not {type(item).__name__}"
                )
            batch = parse(*item)
            features = batch.features.detach()
            wanted = [
                slot.tracker.show(features, batch.targets[slot.name], batch.validity)
                for slot in takers
            ]
            if not any(wanted):
                break
