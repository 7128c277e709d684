"""QM9 as a benchmark: eleven properties of a molecule from one message-passing network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from experiments.benchmark import Batch, Benchmark, Data, Meter, Task
from experiments.meters import MeanAbsoluteError
from experiments.qm9.dataset import Features, Source, load
from experiments.qm9.prepared import Part, Prepared, prepare
from experiments.qm9.targets import BENCHMARK
from experiments.settings import Settings, require

__all__ = ["HEAD", "Qm9"]

HEAD = "properties"


class _Split:
    """One part of the prepared data, as the trainer wants it."""

    def __init__(self, prepared: Prepared, part: Part, groups: int) -> None:
        self._prepared, self._part, self._groups = prepared, part, groups

    def __len__(self) -> int:
        return len(self._prepared.rows(self._part))

    def steps(self, batch_size: int) -> int:
        return -(-len(self) // batch_size)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        batches = self._prepared.batches(
            self._part, batch_size, generator=generator, groups=self._groups
        )
        for graphs, targets in batches:
            yield Batch(graphs, {HEAD: targets})
