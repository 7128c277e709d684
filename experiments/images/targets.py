"""Constant predictions and stratified parts, from labels."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from experiments.rows import Parts

_SHARES: Final = (7, 1, 2)  # of ten examples: training, validation, test


def log_odds(targets: Tensor) -> Tensor:
    """[tasks], the logit of each task's share of ones in [N, tasks], one example added to both.

    The constant with the smallest loss, kept finite where a class does not occur. NaN is not
    counted.
    """
    ones = targets.double().nansum(0) + 1
    return (ones / ((~targets.isnan()).sum(0) + 2 - ones)).log().float()


def log_frequencies(targets: Tensor, classes: int) -> Tensor:
    """[classes], the log of each class's share in [N, 1], with one example added to each."""
    counts = torch.bincount(targets[:, 0], minlength=classes).double() + 1
    return (counts / counts.sum()).log().float()


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
