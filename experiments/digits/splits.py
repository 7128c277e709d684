"""Tables that come with scikit-learn, the digits among them, and their parts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.rows import Parts


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


def read() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] float32, 0 to 16, and digits [1797] int64.

    Raises:
        DataError: scikit-learn is not installed, or without them.
    """
    rows = shipped("digits.csv.gz")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].long()


def split(count: int, seed: int) -> Parts:
    """Rows of the three parts: 60 % training, 20 % validation, 20 % test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = count // 5
    return Parts(order[2 * held :], validation=order[:held], test=order[held : 2 * held])
