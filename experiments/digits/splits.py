"""The images of scikit-learn's digits, and their parts in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.benchmark import Batch
from experiments.errors import DataError

__all__ = ["Rows", "read", "split"]


class Rows:
    """A part of the set: inputs [R, 64] and targets ``{head: [R, ...]}`` on the device."""

    def __init__(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        self._inputs, self._targets = inputs, dict(targets)

    def __len__(self) -> int:
        return len(self._inputs)

    def steps(self, batch_size: int) -> int:
        """Number of batches, the last one possibly smaller."""
        return -(-len(self) // batch_size)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All rows once."""
        order = torch.arange(len(self))
        if generator is not None:
            order = torch.randperm(len(self), generator=generator)
        for rows in order.to(self._inputs.device).split(batch_size):
            yield Batch(self._inputs[rows], {k: v[rows] for k, v in self._targets.items()})


def read() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] float32, 0 to 16, and digits [1797] int64.

    Raises:
        DataError: scikit-learn is not installed, or without them.
    """
    found = find_spec("sklearn")  # its file alone: to import it takes seconds
    if found is None or found.origin is None:
        raise DataError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        )
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        rows = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    except (OSError, ValueError) as error:
        raise DataError(
            f"the digits of scikit-learn, {path}, cannot be read ({error}): install it again"
        ) from error
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].long()


def split(count: int, seed: int) -> dict[str, Tensor]:
    """Rows of the three parts: 60 % training, 20 % validation, 20 % test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = count // 5
    return {"train": order[2 * held :], "validation": order[:held], "test": order[held : 2 * held]}
