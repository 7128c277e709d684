"""Training, validation and test molecules: 80, 10 and 10 %, at random or by scaffold."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.rows import Parts

Split = Literal["random", "scaffold"]

SHARES: Final = (0.8, 0.1)
"""Of training and validation; the rest is for the test."""


def parts(scaffolds: Tensor, split: Split, seed: int) -> Parts:
    """Rows of the three parts, each sorted.

    By scaffold, no scaffold is in two parts: the most frequent ones come first and go to training,
    then to validation, as long as they fit, and the test has the rare ones. There is nothing to
    draw then. MoleculeNet splits so (Wu et al., 2018, https://doi.org/10.1039/C7SC02664A).

    Args:
        scaffolds: [M] int64.
        split: At random or by scaffold.
        seed: Of the random one.

    Raises:
        DataError: There are too few molecules, or scaffolds, for three parts.
    """
    count = len(scaffolds)
    ends = int(SHARES[0] * count), int(sum(SHARES) * count)
    if split == "random":
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        cut = torch.tensor_split(order, ends)
    else:
        cut = _by_scaffold(scaffolds, *ends)
    train, validation, test = (rows.sort().values for rows in cut)
    found = Parts(train, validation, test)
    sizes = found.sizes()
    if 0 in sizes.values():
        raise DataError(f"{count} molecules are too few for three parts ({sizes}): give more")
    return found


def _by_scaffold(scaffolds: Tensor, training: int, held: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the parts, which are to end at these numbers of molecules."""
    groups: dict[int, list[int]] = {}
    for row, scaffold in enumerate(scaffolds.tolist()):
        groups.setdefault(scaffold, []).append(row)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    train, validation, test = found
    for rows in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        if len(train) + len(rows) <= training:
            train += rows
        elif len(train) + len(validation) + len(rows) <= held:
            validation += rows
        else:
            test += rows
    first, second, third = (torch.tensor(rows, dtype=torch.long) for rows in found)
    return first, second, third
