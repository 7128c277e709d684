"""Shares of a batch as rows of bytes, so that one exchange carries features and targets alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesagg_pyro.engine.batch import Batch, Group
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.targets import Parsed, alike


class _Column(NamedTuple):
    """What the targets of a head are made of.

    Attributes:
        name: of the head.
        tasks: columns of values, mask and weight.
        values: dtype.
        mask: its columns: 0 where there is none, 1 where all tasks have the same.
        weight: dtype; None where there is none.
        weights: columns of the weight, likewise.
    """

    name: str
    tasks: int
    values: torch.dtype
    mask: int
    weight: torch.dtype | None
    weights: int


class Format(NamedTuple):
    """What a group of examples is made of: dtype and width of features, and targets."""

    features: torch.dtype
    size: int
    columns: tuple[_Column, ...]


def formats(batch: Batch) -> list[tuple[int, Format]]:
    """Number of examples and format of each group."""
    return [(len(group.features), _format(group)) for group in batch.groups]


def common(shares: Sequence[list[tuple[int, Format]]]) -> list[Format]:
    """The formats that all shares fit into: masks and weights where any has them, widest dtypes.

    Raises:
        StateError: if features differ in dtype, or heads read the same ones in one share only.
    """
    grouped = [[[column.name for column in one.columns] for _, one in share] for share in shares]
    if any(other != grouped[0] for other in grouped):
        raise StateError(
            f"in the processes' shares other heads read the same features, {grouped}; give "
            "features in the same form in all of them, with rows or without"
        )
    found = []
    for group in zip(*shares, strict=True):
        # What is empty has the dtypes that nobody chose.
        found.append(_common([one for rows, one in group if rows] or [one for _, one in group]))
    return found


def pack(group: Group, into: Format) -> Tensor:
    """[B, bytes] of uint8: features, then values, mask and weight of each head.

    Args:
        group: of a share with examples.
        into: where to put it.
    """
    found = [group.features]
    for name, _, dtype, mask, weight, weights in into.columns:
        own = group.targets[name]
        found.append(own.values.to(dtype))
        if mask:
            all_of_them = torch.ones_like(own.values, dtype=torch.bool)
            found.append((all_of_them if own.mask is None else own.mask)[:, :mask])
        if weight is not None:
            one = torch.ones_like(own.values, dtype=weight)
            found.append((one if own.weight is None else own.weight.to(weight))[:, :weights])
    return torch.cat([_dense(tensor).view(torch.uint8) for tensor in found], 1)


def width(of: Format) -> int:
    """Bytes of an example."""
    return sum(count * dtype.itemsize for count, dtype in _pieces(of))


def unpack(rows: Tensor, made_as: Format) -> tuple[Tensor, dict[str, Parsed]]:
    """Features and targets of [B, bytes] rows."""
    sizes = [count * dtype.itemsize for count, dtype in _pieces(made_as)]
    pieces = zip(rows.split(sizes, 1), _pieces(made_as), strict=True)
    found = iter([_dense(piece).view(dtype) for piece, (_, dtype) in pieces])
    features, targets = next(found), {}
    for name, _, _, mask, weight, _ in made_as.columns:
        values = next(found)
        parts = [next(found).expand_as(values) if there else None for there in (mask, weight)]
        targets[name] = Parsed(values, *parts)
    return features, targets


def _format(group: Group) -> Format:
    columns = tuple(
        _Column(
            name,
            own.values.shape[1],
            own.values.dtype,
            _columns(own.mask),
            None if own.weight is None else own.weight.dtype,
            _columns(own.weight),
        )
        for name, own in group.targets.items()
    )
    return Format(group.features.dtype, group.features.shape[1], columns)


def _columns(part: Tensor | None) -> int:
    """How many columns of a mask or weight [B, tasks] differ."""
    return 0 if part is None else 1 if alike(part) else part.shape[1]


def _common(of: Sequence[Format]) -> Format:
    dtypes = [str(one.features) for one in of]
    if len(set(dtypes)) > 1:
        raise StateError(f"the processes' features are of different dtypes, {dtypes}")
    columns = []
    for ours in zip(*(one.columns for one in of), strict=True):
        weights = [column.weight for column in ours if column.weight is not None]
        columns.append(
            ours[0]._replace(
                values=_widest(column.values for column in ours),
                mask=max(column.mask for column in ours),
                weight=_widest(weights) if weights else None,
                weights=max(column.weights for column in ours),
            )
        )
    return of[0]._replace(columns=tuple(columns))


def _dense(tensor: Tensor) -> Tensor:
    """A copy at an aligned place, with the plain strides that views in another dtype want."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _pieces(of: Format) -> list[tuple[int, torch.dtype]]:
    """Numbers per row and dtype of each tensor, in their order."""
    found = [(of.size, of.features)]
    for _, tasks, values, mask, weight, weights in of.columns:
        found.append((tasks, values))
        if mask:
            found.append((mask, torch.bool))
        if weight is not None:
            found.append((weights, weight))
    return found


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    first, *others = dtypes
    for other in others:
        first = torch.promote_types(first, other)
    return first
