"""Parts of a data set, and those of a table in memory as the trainer wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmark import Batch


@dataclass(frozen=True)
class Parts:
    """Rows of the three parts of a set, each [R] int64 on the CPU."""

    train: Tensor
    validation: Tensor
    test: Tensor

    def sizes(self) -> dict[str, int]:
        """Number of rows of each part."""
        return {name: len(rows) for name, rows in vars(self).items()}


def places(count: int, batch_size: int, generator: torch.Generator | None) -> Sequence[Tensor]:
    """Places of the examples in each batch of a pass: in order, or as a generator draws it."""
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    return [*order.split(batch_size)]


class Rows:
    """A part of the set: inputs [R, ...] and targets ``{head: [R, tasks]}`` (one: [R])."""

    def __init__(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        self.inputs = inputs
        self.targets = {name: y[:, None] if y.ndim == 1 else y for name, y in targets.items()}

    def __len__(self) -> int:
        return len(self.inputs)

    def steps(self, batch_size: int) -> int:
        """Number of batches, the last one possibly smaller."""
        return -(-len(self) // batch_size)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All rows once."""
        yield from map(self._batch, places(len(self), batch_size, generator))

    def _batch(self, rows: Tensor) -> Batch:
        """These rows [B], on the processor."""
        rows = rows.to(self.inputs.device)
        return Batch(self.inputs[rows], {k: v[rows] for k, v in self.targets.items()})


def parts_of(
    inputs: Tensor, targets: Mapping[str, Tensor], rows: Parts, device: torch.device
) -> tuple[Rows, Rows, Rows]:
    """Training, validation and test rows of a table.

    Args:
        inputs: [N, ...] of the whole table.
        targets: ``{head: [N, ...]}`` likewise.
        rows: Which are in which part.
        device: Where parts are kept.
    """

    def part(own: Tensor) -> Rows:
        chosen = {head: values[own].to(device) for head, values in targets.items()}
        return Rows(inputs[own].to(device), chosen)

    return part(rows.train), part(rows.validation), part(rows.test)


def standardised(values: Tensor, train: Tensor, fill: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Columns with mean 0 and standard deviation 1 over the training rows, and these two.

    Args:
        values: [N, columns]; NaN where unknown.
        train: Rows.
        fill: Whether the unknown get the mean.
    """
    known = values[train]
    mean = known.nanmean(0)
    std = (known - mean).square().nanmean(0).sqrt()
    scaled = (values - mean) / torch.where(std > 0, std, 1.0)
    return (scaled.nan_to_num() if fill else scaled), mean, std
