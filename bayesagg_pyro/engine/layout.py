"""Features of any shape as rows [examples, d], and what comes of rows in the features' shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro.engine.settings import check_names, check_pair
from bayesagg_pyro.errors import SettingError, ShapeError, TaskError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import Parsed, RawTargets, Targets

__all__ = ["Features", "GivenTargets", "Layout", "Pair", "Source", "check_axis", "read", "rows_of"]


#: What heads read: one tensor for all, or {name: tensor}.
Features: TypeAlias = Tensor | Mapping[str, Tensor]
#: {name: targets} of the heads that have any.
GivenTargets: TypeAlias = Mapping[str, RawTargets]
#: One batch.
Pair: TypeAlias = tuple[Features, GivenTargets]


@dataclass(frozen=True)
class Layout:
    """Where the features of each example lie in a tensor.

    Attributes:
        others: sizes of the other axes, whose product is the number of examples.
        axis: which of the tensor's axes holds the features, from 0.
    """

    others: torch.Size
    axis: int

    @classmethod
    def of(cls, features: Tensor, axis: int) -> Layout:
        """That of features with this axis, which may count from the end; [B, d] has the second.

        Raises:
            ShapeError: if there is no such axis, or no other.
        """
        dims = features.ndim
        if dims == 2:
            axis = 1
        elif dims < 2 or not -dims < axis < dims:
            raise ShapeError(
                f"features of shape {list(features.shape)} have no axis {axis} beside one of "
                "examples; BayesAgg(..., feature_axis=) says which axis the features are on"
            )
        axis %= dims
        return cls(features.shape[:axis] + features.shape[axis + 1 :], axis)

    @property
    def plain(self) -> bool:
        """Whether the tensor is [examples, d] already."""
        return len(self.others) == 1

    def check(self, head: Head, features: Tensor) -> None:
        """Refuse features that are not as wide as the head's.

        Raises:
            ShapeError: naming the head.
        """
        size = features.shape[self.axis]
        if size != head.in_features:
            raise ShapeError(
                f"head {head.site!r}: features of shape {list(features.shape)} have {size} entries "
                f"on axis {self.axis}, the head needs {head.in_features}; BayesAgg(..., "
                "feature_axis=) says which axis the features are on"
            )

    def rows(self, tensor: Tensor) -> Tensor:
        """Examples first: [..., d, ...] as [examples, d]; a view where the memory allows it."""
        if self.plain:
            return tensor
        return tensor.movedim(self.axis, -1).reshape(-1, tensor.shape[self.axis])

    def back(self, rows: Tensor, *, leading: int = 0) -> Tensor:
        """Rows [..., examples, *own] with their own axes where the features' axis was.

        Args:
            rows: [..., examples, *own].
            leading: number of axes in front, as of draws.
        """
        if self.plain:
            return rows
        apart: Tensor = rows.unflatten(leading, self.others)
        own = apart.ndim - leading - len(self.others)
        start = leading + len(self.others)
        return apart.movedim(
            tuple(range(start, start + own)),
            tuple(range(leading + self.axis, leading + self.axis + own)),
        )

    def targets(self, owner: str, targets: RawTargets, tasks: int) -> RawTargets:
        """Values, mask and weight as [examples, tasks], or [examples] where they are for all tasks.

        Args:
            owner: who speaks in an error.
            targets: what the user passed: tensors of the features' shape with the tasks where the
                features are, or without that axis.
            tasks: of the head.

        Raises:
            ShapeError: for other shapes.
        """
        if isinstance(targets, Parsed):  # of rows
            return targets
        if isinstance(targets, Tensor):
            return self._part(owner, "targets", targets, tasks)
        if isinstance(targets, tuple | list) and 2 <= len(targets) <= 3:
            parts: Any = [
                self._part(owner, what, part, tasks) if isinstance(part, Tensor) else part
                for what, part in zip(("targets", "the mask", "the weight"), targets, strict=False)
            ]
            return Targets(*parts) if isinstance(targets, Targets) else tuple(parts)
        return targets  # the head says what is wrong with it

    def _part(self, owner: str, what: str, part: Tensor, tasks: int) -> Tensor:
        for_all = tasks == 1 or what != "targets"
        if for_all and part.shape == self.others:
            return part.reshape(-1)
        wanted = [*self.others[: self.axis], tasks, *self.others[self.axis :]]
        if list(part.shape) != wanted:
            raise ShapeError(
                f"{owner}: {what} must have the features' shape with the tasks in place of the "
                f"features, {wanted}"
                + (f", or without that axis, {list(self.others)}" if for_all else "")
                + f"; not {list(part.shape)}"
            )
        return self.rows(part)


@dataclass(frozen=True, eq=False)
class Source:
    """Features that some heads read, with what the user gave as their targets.

    Attributes:
        features: [B, d], on the backbone's graph.
        heads: {name: head}, those that read them.
        targets: {name: raw targets of those rows}, of the heads that have any.
        folded: whether the rows come of a tensor with more axes, which is where padding is usual.
    """

    features: Tensor
    heads: Mapping[str, Head]
    targets: GivenTargets
    folded: bool = False


def read(
    features: Features | Sequence[Pair],
    targets: GivenTargets | None,
    heads: Mapping[str, Head],
    axis: int,
    *,
    share: bool = False,
) -> list[list[Source]]:
    """What a user passed, as rows: the sources of each group of heads.

    Args:
        features: [B, d], or with more axes; {name: such} where heads read different ones; or pairs
            of them and targets.
        targets: {name: targets}; None beside pairs.
        heads: {name: head}.
        axis: of the features.
        share: whether this is one process's part of a batch, which may lack rows and labels. Groups
            are in the heads' order then.

    Returns:
        For each group its sources, whose rows follow each other.

    Raises:
        TaskError: if names do not match the heads, or there are targets without features.
        ShapeError: if features or targets have another shape.
        DtypeError: for what is neither features and targets nor pairs of them.
    """
    if targets is None and isinstance(features, list | tuple):
        if not features:
            raise TaskError("there is no batch to take a step on: leave the call out")
        groups = _groups([s for pair in features for s in _of_pair(pair, heads, axis)])
    else:
        if not share or targets != {}:
            check_names(targets, heads, all_of_them=False)
        if isinstance(features, Tensor):  # that all heads read
            return [[_source(features, targets or {}, heads, axis)]]
        whole: Any = features
        groups = [[source] for source in _sources(whole, targets or {}, heads, axis)]
    read_by = {name for group in groups for source in group for name in source.heads}
    absent = {name: head for name, head in heads.items() if name not in read_by}
    # A head that reads nothing in this step has one example without a label, in a share none.
    for size in dict.fromkeys(head.in_features for head in absent.values()):
        own = {name: head for name, head in absent.items() if head.in_features == size}
        like = groups[0][0].features
        blank = like.detach().new_zeros(int(not share), size) if isinstance(like, Tensor) else like
        groups.append([Source(blank, own, {})])
    if share:
        place = {name: at for at, name in enumerate(heads)}
        groups.sort(key=lambda group: min(place[name] for one in group for name in one.heads))
    return groups


def _sources(
    features: Features, targets: GivenTargets, heads: Mapping[str, Head], axis: int
) -> list[Source]:
    """One source for each tensor of features."""
    if not isinstance(features, Mapping):
        return [_source(features, targets, heads, axis)]
    lacking = [name for name in targets if name not in features]
    if lacking:
        raise TaskError(f"there are targets for {lacking}, but no features for these heads")
    found = []
    for tensor, own in _readers(features, heads):
        given = {name: targets[name] for name in own if name in targets}
        found.append(_source(tensor, given, own, axis))
    return found


def _of_pair(pair: Any, heads: Mapping[str, Head], axis: int) -> list[Source]:
    """The sources of one of several batches, read by the heads that have targets in it."""
    features, targets = check_pair(pair)
    check_names(targets, heads, all_of_them=False)
    own = {name: head for name, head in heads.items() if name in targets}
    if isinstance(features, Mapping):
        features = {
            name: tensor for name, tensor in features.items() if name not in heads or name in own
        }
    return _sources(features, targets, own, axis)


def _groups(sources: Sequence[Source]) -> list[list[Source]]:
    """Sources together that have a head in common, if need be through others."""
    groups: list[list[Source]] = []
    for source in sources:
        linked = [g for g in groups if any(source.heads.keys() & one.heads.keys() for one in g)]
        groups = [g for g in groups if g not in linked]
        groups.append([*(one for g in linked for one in g), source])
    return groups


def rows_of(
    features: Features, heads: Mapping[str, Head], axis: int, *, values: bool
) -> dict[str, tuple[Tensor, Layout]]:
    """The rows that each head is to predict for, and how to get back to the features' shape.

    Args:
        features: as for `read`; heads that have none are left out.
        heads: {name: head}.
        axis: of the features.
        values: whether to refuse features that are not finite.

    Raises:
        BayesAggError: as heads do for bad features.
    """
    readers = _readers(features, heads) if isinstance(features, Mapping) else [(features, heads)]
    found = {}
    for tensor, own in readers:
        source = _source(tensor, {}, own, axis)
        for name, head in own.items():
            head.check_features(source.features, values=values)
            found[name] = source.features, Layout.of(tensor, axis)
    return {name: found[name] for name in heads if name in found}


def _readers(
    features: Mapping[str, Tensor], heads: Mapping[str, Head]
) -> list[tuple[Tensor, dict[str, Head]]]:
    """Each tensor once, with the heads that read it, in order.

    The same object counts as one: another view of its memory may be another function of the graph.
    """
    unknown = [name for name in features if name not in heads]
    if unknown or not features:
        raise TaskError(f"features are given for {list(features)}, the heads are {list(heads)}")
    tensors = {id(tensor): tensor for tensor in features.values()}
    return [
        (tensor, {n: h for n, h in heads.items() if n in features and features[n] is tensor})
        for tensor in tensors.values()
    ]


def _source(
    features: Tensor, targets: GivenTargets, heads: Mapping[str, Head], axis: int
) -> Source:
    """Features that all of these heads read."""
    if not isinstance(features, Tensor) or features.ndim <= 2:  # heads say what is wrong with it
        return Source(features, heads, targets)
    layout = Layout.of(features, axis)
    found: dict[str, RawTargets] = {}
    for name, head in heads.items():
        layout.check(head, features)
        if name in targets:
            found[name] = layout.targets(f"head {head.site!r}", targets[name], head.tasks)
    return Source(layout.rows(features), heads, found, folded=True)


def check_axis(axis: Any) -> None:
    """Refuse an axis of the features that is none.

    Raises:
        SettingError: for what is no integer, and for 0, the axis of the batch.
    """
    if not isinstance(axis, int) or isinstance(axis, bool) or axis == 0:
        raise SettingError(
            f"feature_axis must be an integer other than 0, the axis of the batch, not {axis!r}"
        )
