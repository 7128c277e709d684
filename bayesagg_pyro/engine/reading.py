"""What users pass to a call, read: the rows of features, who reads them, and their targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesagg_pyro.engine.layout import Layout
from bayesagg_pyro.errors import DtypeError, StateError, TaskError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.targets import RawTargets

#: What heads read: one tensor for all, or {name: tensor}.
Features: TypeAlias = Tensor | Mapping[str, Tensor]
#: {name: targets} of the heads that have any.
GivenTargets: TypeAlias = Mapping[str, RawTargets]
#: One batch.
Pair: TypeAlias = tuple[Features, GivenTargets]


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
    attached: bool = False,
    share: bool = False,
) -> list[list[Source]]:
    """What a user passed, as rows: the sources of each group of heads.

    Args:
        features: [B, d], or with more axes; {name: such} where heads read different ones; or pairs
            of them and targets.
        targets: {name: targets}; None beside pairs.
        heads: {name: head}.
        axis: of the features.
        attached: whether features must have a graph.
        share: whether this is one process's part of a batch, which may lack rows and labels. Groups
            are in the heads' order then.

    Returns:
        For each group its sources, whose rows follow each other.

    Raises:
        TaskError: if names do not match the heads, or there are targets without features.
        ShapeError: if features or targets have another shape.
        DtypeError: for what is neither features and targets nor pairs of them.
        StateError: for features without a graph.
    """
    if targets is None and isinstance(features, list | tuple):
        if not features:
            raise TaskError("there is no batch to take a step on: leave the call out")
        pairs = list(map(check_pair, features))
        if attached:
            for own, _ in pairs:
                check_graph(own)
        groups = _groups([source for pair in pairs for source in _of_pair(pair, heads, axis)])
    else:
        if attached:
            check_graph(features)
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


def _of_pair(pair: Pair, heads: Mapping[str, Head], axis: int) -> list[Source]:
    """The sources of one of several batches, read by the heads that have targets in it."""
    features, targets = pair
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


def check_names(given: Any, heads: Iterable[str], *, all_of_them: bool = True) -> None:
    """Refuse names that do not match the heads.

    Args:
        given: {name: value}.
        heads: their names.
        all_of_them: whether every head needs a value; else one is enough.

    Raises:
        TaskError: listing missing and unknown names.
        DtypeError: if it is no mapping.
    """
    if not isinstance(given, Mapping):
        shown = ", ".join(f"{name!r}: ..." for name in heads)
        raise DtypeError(f"one value per head is needed, {{{shown}}}, not {type(given).__name__}")
    if given and given.keys() == set(heads):
        return
    missing = [name for name in heads if name not in set(given)]
    unknown = [name for name in given if name not in set(heads)]
    if not all_of_them and not unknown:
        if not given:
            raise TaskError(
                f"no head of {list(heads)} has targets in this batch: leave the batch out"
            )
        return
    if missing or unknown:
        raise TaskError(
            f"names do not match the heads {list(heads)}: missing {missing}, unknown {unknown}"
        )


def check_graph(features: Any, owner: str = "") -> None:
    """Refuse features through which no gradient can flow.

    Args:
        features: one tensor or {name: tensor}.
        owner: whose they are, in an error.

    Raises:
        DtypeError, StateError: with the remedy.
    """
    if isinstance(features, Mapping):
        for name, tensor in features.items():
            check_graph(tensor, f" of head {name!r}")
        return
    if not isinstance(features, Tensor):
        raise DtypeError(f"features{owner} must be a tensor, not {type(features).__name__}")
    check_grad_mode()
    if not features.requires_grad:
        raise StateError(
            f"the features{owner} need no gradient: pass the backbone's output itself, not "
            "detached and not from torch.no_grad(), and leave the backbone's parameters trainable; "
            "if what makes them is frozen on purpose, pass features.requires_grad_()"
        )


def check_pair(pair: Any) -> tuple[Any, Any]:
    """Features and targets of one batch.

    Raises:
        DtypeError: if it is no pair.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DtypeError(
            f"batches must give pairs (features, {{name: targets}}), not {type(pair).__name__}"
        )
    return pair[0], pair[1]


def check_grad_mode() -> None:
    """Refuse a backward pass where torch takes no gradients.

    Raises:
        StateError: with the remedy.
    """
    if not torch.is_grad_enabled():
        raise StateError("backward() needs gradients: call it outside torch.no_grad()")
