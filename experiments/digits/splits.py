"""The images of scikit-learn's digits, and their parts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.errors import DataError

__all__ = ["read", "split"]


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
