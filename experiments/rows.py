"""Parts of a data set, constants that its labels suggest, and tables in memory for the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from experiments.benchmark import Batch, Split
from experiments.errors import DataError


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


class Rows(Split):
    """A part of the set: inputs [R, ...] and targets ``{head: [R, tasks]}`` (one: [R])."""

    def __init__(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        self.inputs = inputs
        self.targets = {name: y[:, None] if y.ndim == 1 else y for name, y in targets.items()}

    def __len__(self) -> int:
        return len(self.inputs)

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
    rounding = 10 * torch.finfo(mean.dtype).eps * mean.abs()  # all that a constant column has
    scaled = (values - mean) / torch.where(std > rounding, std, 1.0)
    return (scaled.nan_to_num() if fill else scaled), mean, std


def log_odds(targets: Tensor) -> Tensor:
    """[tasks], the logit of each task's share of ones in [N, tasks], one example added to both.

    The constant with the smallest loss, kept finite where a class does not occur. NaN is not
    counted.
    """
    ones = targets.double().nansum(0) + 1
    return (ones / ((~targets.isnan()).sum(0) + 2 - ones)).log().float()


def log_frequencies(targets: Tensor, classes: int) -> Tensor:
    """[classes], the log of each class's share in [N, 1], with one example added to each.

    Labels below 0 are not counted.
    """
    counts = torch.bincount(targets[targets >= 0], minlength=classes).double() + 1
    return (counts / counts.sum()).log().float()


_SHARES: Final = (7, 1, 2)  # of ten examples: training, validation, test


def stratified(values: Tensor, seed: int) -> Parts:
    """Parts in which every value is represented by its share, rare values with their neighbours.

    Examples are sorted by value, equal ones at random, and cut into blocks of ten; in
    each block, places are drawn for the parts. A value with many examples fills whole blocks; one
    with few shares a block with the values next to it, so nothing has to be left out or lumped
    together.

    Args:
        values: [N], of any number type.
        seed: Of both draws.
    """
    generator = torch.Generator().manual_seed(seed)
    count, block = len(values), sum(_SHARES)
    shuffled = torch.randperm(count, generator=generator)
    order = shuffled[values[shuffled].sort(stable=True).indices]
    blocks = -(-count // block)
    template = torch.repeat_interleave(torch.arange(3), torch.tensor(_SHARES))
    places = torch.rand(blocks, block, generator=generator).argsort(1)
    part = template[places].flatten()[:count]
    train, validation, test = (order[part == index].sort().values for index in range(3))
    return Parts(train, validation, test)


def shipped(name: str, delimiter: str = ",") -> Tensor:
    """A table of numbers that comes with scikit-learn, [rows, columns] float32.

    Raises:
        DataError: scikit-learn is not installed, or without it.
    """
    found = find_spec("sklearn")  # its file alone: to import it takes seconds
    if found is None or found.origin is None:
        raise DataError(
            f"{name} comes with scikit-learn, which is not installed: pip install scikit-learn"
        )
    path = Path(found.origin).parent / "datasets" / "data" / name
    try:
        return torch.from_numpy(np.loadtxt(path, delimiter=delimiter, dtype=np.float32, ndmin=2))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} of scikit-learn cannot be read ({error}): install it again"
        ) from error


def fifths(count: int, seed: int) -> Parts:
    """Rows of the three parts: 60 % training, 20 % validation, 20 % test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = count // 5
    return Parts(order[2 * held :], validation=order[:held], test=order[held : 2 * held])
