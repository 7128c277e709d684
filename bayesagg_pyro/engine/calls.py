"""How a call of the engine begins: with batches that are checked, in all processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler

from bayesagg_pyro.engine.alike import join
from bayesagg_pyro.engine.batch import Batch
from bayesagg_pyro.engine.info import Observer
from bayesagg_pyro.engine.processes import STEPS, Processes
from bayesagg_pyro.engine.reading import Features, GivenTargets, Pair, check_pair, read
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.engine.stateful import Stateful
from bayesagg_pyro.engine.step import finite_losses
from bayesagg_pyro.engine.transaction import as_a_whole
from bayesagg_pyro.engine.validation import Validation, refuse_weights
from bayesagg_pyro.errors import NumericalError, StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._standardising import Standardising

#: Pairs of features and {head: targets}, in any form that `backward` takes.
Batches: TypeAlias = Iterable[Pair]
#: What `backward` takes.
Given: TypeAlias = tuple[Features | Sequence[Pair], GivenTargets | None]


class Calls(Stateful):
    """Base of the engine: how it takes in batches, alone or together with other processes.

    Attributes:
        feature_axis: which axis of the features is theirs.
        reduction, working_memory, keep_gradients, observer: see `BayesAgg`.
    """

    feature_axis: int
    reduction: str
    working_memory: int | None
    keep_gradients: bool
    observer: Observer | None
    _heads: dict[str, Head]
    _validation: Validation
    _processes: Processes

    def _next(
        self,
        call: str,
        source: Iterator[Given],
        *,
        attached: bool = False,
        parameters: Sequence[Tensor] = (),
        scaler: GradScaler | None = None,
    ) -> Batch | None:
        """The next of what the user gave as a batch, checked; in several processes that of all.

        Args:
            call: that of the user.
            source: of features and targets. What it raises, the other processes hear of.
            attached: whether features must have a graph.
            parameters: of the backbone, where the features' graph does not lead to them.
            scaler: of the gradients.

        Returns:
            None when no process has any more.
        """
        if self._is_alone():
            batch = self._share(source, attached)
        else:
            made_with = () if scaler is None else (f"scaler of scale {scaler.get_scale():g}",)
            share = partial(self._share, source, attached, several=True)
            batch = self._of_all((call, *made_with), share, parameters)
        if batch is None:
            return None
        if not batch.validity.now:
            for slot in self._slots.values():
                batch.validity.require(partial(slot.tracker.holds, batch.examples(slot.name)[0]))
            batch.validity.note()
            batch = batch.cleaned(self._heads)
        for head in self._heads.values():
            if isinstance(head, Standardising) and head.units_state == "open":
                return batch.standardised(self._heads)
        return batch

    def _is_alone(self) -> bool:
        """Whether no other process shares the batch.

        Warns:
            UserWarning: once, where a launcher has started several that no group connects.
        """
        peers = self._processes
        if dist.is_available() and dist.is_initialized():
            return peers.count == 1
        started = os.environ.get("WORLD_SIZE", "")
        if peers.wanted and not peers.warned and started not in ("", "1"):
            peers.warned = True
            warnings.warn(
                f"{started} processes were started (WORLD_SIZE), but there is no process group: "
                "each takes steps on its own share, with priors and heads of its own. Call "
                "torch.distributed.init_process_group() before the first step; where that is "
                "meant, give BayesAgg(..., distributed=False)",
                stacklevel=2,
            )
        return True

    def _share(
        self, source: Iterator[Given], attached: bool, *, several: bool = False
    ) -> Batch | None:
        """What this process was given, read and checked."""
        for slot in self._slots.values():
            slot.check_shape()
        given = next(source, None)
        if given is None:
            return None
        groups = read(*given, self._heads, self.feature_axis, attached=attached, share=several)
        return self._validation.parse(self._heads, groups, empty=several)

    def _of_all(
        self,
        call: tuple[str, ...],
        share: Callable[[], Batch | None],
        parameters: Sequence[Tensor],
    ) -> Batch | None:
        """The batch of all processes."""
        mode = "training" if self.training else "evaluation"
        part = "warm-up" if self.warmup else "Bayesian"
        observer = self.observer if self.training and call[0] in STEPS else None
        batch = self._processes.whole(
            (call[0], mode, part, f"validate={self._validation.mode}", *call[1:]),
            share,
            parameters=parameters,
            nothing=lambda: self._validation.of_nothing(self._slots.values()),
            join=partial(join, self, self._processes),
            device=next(self.heads.parameters()).device,
            watched=self.keep_gradients or (observer is not None and observer.wants()),
        )
        return None if batch is None else batch.filled(self._heads)

    def _each(self, call: str, batches: Batches, *, as_steps: bool = False) -> Iterator[Batch]:
        """Each of the batches that the user gave, once; as many as the process with most has.

        Args:
            call: that of the user.
            batches: what the user gave.
            as_steps: whether they are held to the checks that steps on them would make.

        Raises:
            DtypeError: if an item is no pair.
        """

        def pairs() -> Iterator[Given]:
            for pair in batches:
                yield check_pair(pair)

        source = pairs()
        while (batch := self._next(call, source)) is not None:
            if as_steps:
                finite_losses(self._slots.values(), batch, warmup=self.warmup)
            yield batch

    @torch.no_grad()
    def _collect(self, batch: Batch) -> None:
        if batch.units:
            batch.take_units()
        for slot in self._slots.values():
            slot.tracker.collect(*batch.examples(slot.name), batch.validity)
            if not (self.warmup or slot.learns):
                slot.follow()

    def _renew(self) -> None:
        empty = [slot.name for slot in self._slots.values() if not slot.tracker.collected]
        if empty:
            raise StateError(
                f"nothing has been collected for {empty} since the last update_prior(); "
                "only backward() in train mode (mtl.train()) collects"
            )
        for slot in self._slots.values():
            try:
                slot.renew()
            except NumericalError:
                refuse_weights([slot])
                raise

    @contextmanager
    def _all_at(self, call: str) -> Iterator[None]:
        """As `as_a_whole`, once all processes are there, whose heads are made the first one's."""
        self._next(call, iter(()))
        self._processes.broadcast([*self.heads.parameters(), *self.heads.buffers()])
        with as_a_whole(self):
            yield


def show(
    slots: Collection[Slot], batches: Iterable[Batch] | None, *, everyone: bool = False
) -> None:
    """Go through the batches once, without gradients, until no prior wants more.

    Args:
        slots: what belongs to each head.
        batches: checked as they are drawn; None if the user gave none.
        everyone: whether all priors are shown the batches, or those alone that take them; then each
            head must have a target in them.

    Raises:
        StateError: if batches are missing, no prior takes any, or a head has no target in them.
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
    lacking = [slot.name for slot in takers if everyone]
    with torch.no_grad():
        for batch in batches:
            batch.take_units()
            lacking = [name for name in lacking if not batch.examples(name)[1].seen().any()]
            wanted = [
                slot.tracker.show(*batch.examples(slot.name), batch.validity) for slot in takers
            ]
            if not any(wanted):
                break
    if lacking:
        raise StateError(
            f"there is no target of {lacking} in these batches, and so nothing to make a posterior "
            "of; give each head some, or make an engine without it"
        )
