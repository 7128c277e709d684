"""A batch on its way through a call of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.heads._standardising import Standardising
from bayesagg_pyro.targets import Parsed, Targets
from bayesagg_pyro.validity import CHECKED, Validity


@dataclass(frozen=True)
class Group:
    """Examples and the heads that read their features.

    Attributes:
        features: [B, d], off the backbone's graph.
        targets: {name: parsed targets of those heads}.
        rows: which of the examples are this process's own; None for all.
        kept: which of the rows that this process was given are among those, [rows] bool; None for
            all. Padding is left out where values can be looked at.
        given: all rows that this process was given, on the backbone's graph if they have one.
    """

    features: Tensor
    targets: Mapping[str, Targets]
    rows: slice | None = None
    kept: Tensor | None = None
    given: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """One batch as a step takes it: groups of examples with checked targets.

    Attributes:
        groups: the examples, apart where heads read different features.
        validity: whether all the values are to be believed.
        processes: how many share the batch.
        watched: whether what passes between the stages is kept, in this process or another.
        units: heads with what their `take_units` is to write with this batch.
    """

    groups: tuple[Group, ...]
    validity: Validity = CHECKED
    processes: int = 1
    watched: bool = False
    units: Sequence[tuple[Standardising, tuple[Tensor, Tensor]]] = ()

    def examples(self, name: str) -> tuple[Tensor, Targets]:
        """What a head reads, [B, d], and its targets."""
        for group in self.groups:
            if name in group.targets:
                return group.features, group.targets[name]
        raise KeyError(name)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with features that a function has changed."""
        return self._each(lambda group: replace(group, features=change(group.features)))

    def wide(self) -> Batch:
        """The batch with features in float32 at least, whose range moments need."""
        groups = []
        for group in self.groups:
            dtype = torch.promote_types(group.features.dtype, torch.float32)
            groups.append(replace(group, features=group.features.to(dtype)))
        return replace(self, groups=tuple(groups))

    def cleaned(self, heads: Mapping[str, Head]) -> Batch:
        """The batch, or harmless values where it is bad: 0 · NaN would still be NaN."""
        validity = self.validity

        def cleaned(group: Group) -> Group:
            own = group.targets.items()
            targets = {n: validity.keep_targets(part, heads[n].filler) for n, part in own}
            return replace(group, features=validity.keep(group.features, 0.0), targets=targets)

        return self._each(cleaned)

    def standardised(self, heads: Mapping[str, Head]) -> Batch:
        """The batch in the units that heads choose with it; where it is bad, cleaned before."""
        units: list[tuple[Standardising, tuple[Tensor, Tensor]]] = []
        groups = []
        for group in self.groups:
            targets = dict(group.targets)
            for name, own in group.targets.items():
                head = heads[name]
                if isinstance(head, Standardising) and (found := head.chosen(own, self.validity)):
                    chosen, targets[name] = found
                    units.append((head, chosen))
            groups.append(replace(group, targets=targets))
        return replace(self, groups=tuple(groups), units=units)

    def take_units(self) -> None:
        """Put in force what heads have chosen."""
        for head, units in self.units:
            head.take_units(*units)

    def filled(self, heads: Mapping[str, Head]) -> Batch:
        """The batch, with an unlabelled example in each group that no process has examples of."""

        def filled(group: Group) -> Group:
            if len(group.features):
                return group
            return replace(
                group,
                features=group.features.new_zeros(1, group.features.shape[1]),
                targets={name: heads[name].unlabelled(1) for name in group.targets},
                rows=slice(0),
            )

        return self._each(filled)

    def _each(self, change: Callable[[Group], Group]) -> Batch:
        return replace(self, groups=tuple(map(change, self.groups)))

    def reported(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Losses as users see them: NaN for tasks without a label, and for a bad batch."""
        found = dict(losses)  # in their order
        for group in self.groups:
            for name, targets in group.targets.items():
                loss = losses[name].detach()
                if targets.mask is not None:
                    loss = torch.where(targets.counts() > 0, loss, math.nan)
                found[name] = loss if self.validity.now else self.validity.keep(loss, math.nan)
        return found

    def own(self, updates: Sequence[Tensor]) -> list[Tensor]:
        """This process's rows of the updates of all features, for a backbone that is averaged."""
        found = []
        for group, update in zip(self.groups, updates, strict=True):
            update = update.to(group.features.dtype)
            if group.rows is not None:
                update = update[group.rows] * self.processes
            if group.kept is not None:
                whole = update.new_zeros(len(group.kept), update.shape[1])
                whole[group.kept] = update
                update = whole
            found.append(update)
        return found

    def into_backbone(self, updates: Sequence[Tensor], *, retain_graph: bool = False) -> None:
        """Propagate the features' updates in one pass, so that groups may share a graph.

        Args:
            updates: of the features of each group.
            retain_graph: as for `torch.Tensor.backward`.

        Raises:
            StateError: if the features' graph has been used up by an earlier call.
        """
        features, wanted = [], []
        for group, update in zip(self.groups, self.own(updates), strict=True):
            if group.given is not None and group.given.requires_grad:
                features.append(group.given)
                wanted.append(update)
        try:
            torch.autograd.backward(features, wanted, retain_graph=retain_graph)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise StateError(
                "these features have been through a backward pass already, which frees their "
                "graph; compute them anew for each call, or give retain_graph=True to the one "
                "before"
            ) from error


def _stacked(parts: Sequence[Targets | None], sizes: Sequence[int], head: Head) -> Targets:
    """Targets of several lots of examples one after the other.

    Args:
        parts: of each; None where the head has no label.
        sizes: how many examples there are in each.
        head: whose targets they are.
    """
    found = [
        head.unlabelled(size) if part is None else part
        for part, size in zip(parts, sizes, strict=True)
    ]
    given = [part.values.dtype for part in parts if part is not None]
    dtype = reduce(torch.promote_types, given) if given else found[0].values.dtype
    return Parsed(
        torch.cat([part.values.to(dtype) for part in found]),
        _cat([part.mask for part in found], sizes),
        _cat([part.weight for part in found], sizes),
    )


def _cat(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Masks or weights one after the other, those that are not there as ones; None for none."""
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    return torch.cat(
        [
            like.new_ones(size, *like.shape[1:]) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def joined(groups: Sequence[Group], heads: Mapping[str, Head]) -> Group:
    """The rows of groups one after the other; a head has no label at those that it does not read.

    Args:
        groups: of features of one width.
        heads: {name: head} of all that read one of them.
    """
    if len(groups) == 1:
        return groups[0]
    sizes = [len(group.features) for group in groups]
    targets = {
        name: _stacked([group.targets.get(name) for group in groups], sizes, head)
        for name, head in heads.items()
    }
    given = [group.given for group in groups if group.given is not None]
    return Group(
        torch.cat([group.features for group in groups]),
        targets,
        kept=_cat([group.kept for group in groups], sizes),
        given=torch.cat(given) if given else None,
    )


def as_one(
    batch: Batch, heads: Mapping[str, Head]
) -> tuple[Tensor, dict[str, Targets], dict[str, slice]]:
    """Features and targets with the rows of all groups one after the other.

    Returns:
        Features [B, d] of the largest width, others end in zeros; {name: targets}; {name: which of
        the rows the head reads}.
    """
    wide = max(group.features.shape[1] for group in batch.groups)
    alike = [
        Group(pad(group.features, (0, wide - group.features.shape[1])), group.targets)
        for group in batch.groups
    ]
    one = joined(alike, heads)
    ends = list(accumulate(len(group.features) for group in alike))
    rows = {
        name: slice(end - len(group.features), end)
        for group, end in zip(alike, ends, strict=True)
        for name in group.targets
    }
    return one.features, dict(one.targets), {name: rows[name] for name in heads}
