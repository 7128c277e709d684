"""Validation of batches: at once on the CPU, deferred on an accelerator.

Looking at a value on an accelerator waits for it. Deferred validation keeps a flag there instead,
turns the update of a bad batch into zeros, and raises when the engine synchronises anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.engine.batch import Batch, Group, joined
from bayesagg_pyro.engine.reading import Source
from bayesagg_pyro.engine.slot import Slot
from bayesagg_pyro.errors import BayesAggError, NonFiniteError, SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Deferred, Validity


class Validation:
    """Checks batches and remembers what deferred checks found.

    Args:
        mode: "now", "deferred", or "auto": "now" for features on the CPU.

    Raises:
        SettingError: for another mode.
    """

    def __init__(self, mode: Literal["auto", "now", "deferred"]) -> None:
        if mode not in ("auto", "now", "deferred"):
            raise SettingError(f'validate must be "auto", "now" or "deferred", not {mode!r}')
        self.mode = mode
        self._bad: Tensor | None = None  # set in place, so that replays of a captured step find it

    def defers(self, features: Tensor | None) -> bool:
        """Whether to leave values to the device, for these features."""
        return self.mode == "deferred" or (
            self.mode == "auto" and isinstance(features, Tensor) and features.device.type != "cpu"
        )

    def parse(
        self, heads: Mapping[str, Head], given: Sequence[Sequence[Source]], *, empty: bool = False
    ) -> Batch:
        """The batch with parsed targets, and for deferred validation a flag on the device.

        Args:
            heads: {name: head}, in the order that they are to keep.
            given: the sources of each group, whose rows are to follow each other. A head has no
                label at rows that it does not read, or has no targets for.
            empty: whether there may be no rows, as in one process's share.

        Raises:
            ShapeError, DtypeError, DeviceError: always at once.
            NonFiniteError, SettingError: for bad values, unless deferred.
        """
        now = not self.defers(given[0][0].features)
        groups = []
        for sources in given:
            first, *others = sources
            group = _group(first, now, empty)
            if others:
                read_by = {name for one in sources for name in one.heads}
                parts = [group, *(_group(one, now, empty) for one in others)]
                group = joined(parts, {n: heads[n] for n in heads if n in read_by})
            groups.append(group)
        if now:
            return Batch(tuple(groups))
        good = torch.ones((), dtype=torch.bool, device=groups[0].features.device)
        for group in groups:
            good = good & group.features.isfinite().all()
            for name, targets in group.targets.items():
                good = good & heads[name].valid(targets)
                if targets.weight is not None:
                    good = good & (targets.weight.isfinite() & (targets.weight >= 0)).all()
        return Batch(tuple(groups), Deferred(good, self.note))

    def of_nothing(self, slots: Collection[Slot]) -> Validity:
        """Validity of the share of a process that has no more batches."""
        weight = next(iter(slots)).head.weight
        if not self.defers(weight):
            return CHECKED
        return Deferred(torch.ones((), dtype=torch.bool, device=weight.device), self.note)

    def note(self, good: Tensor) -> None:
        """Remember a batch's flag, to raise if it is not set."""
        if self._bad is None or self._bad.device != good.device:
            self._bad = torch.zeros_like(good)
        self._bad.logical_or_(~good)

    def raise_deferred(self) -> None:
        """Raise if a batch since the last call was bad.

        Raises:
            NonFiniteError: if features, targets or an update were bad.
        """
        if self._bad is not None and bool(self._bad):
            self._bad.zero_()
            raise NonFiniteError(
                "a batch since the last check had features, targets or an update that were not "
                "finite, or pieces with other features in the second pass; its update was zero. "
                "Make the engine with validate='now' to find it"
            )

    def forget(self) -> None:
        """Forget the bad batches found so far."""
        if self._bad is not None:
            self._bad.zero_()


def _group(source: Source, now: bool, empty: bool) -> Group:
    """Features off the graph and parsed targets; values are looked at if `now`."""
    given = features = source.features
    parsed: dict[str, Targets] = {}
    for name, head in source.heads.items():
        head.check_features(features, values=False, empty=empty)
        parsed[name] = (
            head.parse_targets(source.targets[name], len(features), validate=now)
            if name in source.targets
            else head.unlabelled(len(features))
        )
    features = features.detach()
    finite = now and linalg.all_finite(features)
    labelled = _labelled(parsed.values())
    if labelled is not None and not finite:
        features = torch.where(labelled[:, None], features, 0.0)
    if now and not finite:
        next(iter(source.heads.values())).check_features(features, empty=empty)
    if now and source.folded and labelled is not None and 0 < int(labelled.sum()) < len(labelled):
        left = {name: _of_rows(targets, labelled) for name, targets in parsed.items()}
        return Group(features[labelled], left, kept=labelled, given=given)
    return Group(features, parsed, given=given)


def _labelled(targets: Iterable[Targets]) -> Tensor | None:
    """Rows where a head has a label, [B] bool; None for all. Others, of padding, may be NaN."""
    labelled = None
    for one in targets:
        if one.mask is None:
            return None
        labelled = one.mask.any(1) if labelled is None else labelled | one.mask.any(1)
    return labelled


def _of_rows(targets: Targets, rows: Tensor) -> Targets:
    """Targets at some rows, [B] bool; without a mask if all are observed there."""
    left = targets.examples(rows)
    return left._replace(mask=None) if left.mask is None or bool(left.mask.all()) else left


def require_finite(
    batch: Batch,
    slots: Collection[Slot],
    what: str,
    values: Sequence[Tensor],
    suspects: Callable[[], list[str]],
) -> None:
    """Good input may still overflow: raise, or flag the batch under deferred validation.

    Args:
        batch: the batch.
        slots: of heads whose own weights have a part in it; looked at for an error alone.
        what: how an error names the values.
        values: what must be finite.
        suspects: names the heads that they come from; called for an error alone.

    Raises:
        NonFiniteError: naming the head, and whether its weights are the cause.
    """

    def error() -> BayesAggError:
        refuse_weights(slots)
        heads = "".join(f" of head {name!r}" for name in suspects()[:1])
        return NonFiniteError(
            f"{what}{heads} overflows {values[0].dtype} or is NaN, although features and targets "
            "are finite; standardise the targets, or look for a backbone that diverges or a "
            "likelihood that gives NaN"
        )

    if not batch.validity.now:
        batch.validity.flag_unless_finite(values)
    elif not all(map(linalg.all_finite, values)):
        raise error()


def refuse_weights(slots: Collection[Slot]) -> None:
    """Refuse heads' own weights if these are the cause of what has gone wrong.

    Raises:
        NonFiniteError: naming the head and the parameter.
    """
    for slot in slots:
        for which, weight in slot.head.named_parameters():
            if not linalg.all_finite(weight.detach()):
                raise NonFiniteError(
                    f"{which!r} of head {slot.name!r} is not finite: an earlier step has made it "
                    "so; go back to an earlier state, and lower the learning rate"
                )
