"""What a benchmark is: data, a backbone, heads and default settings.

A new benchmark is a subclass of :class:`Benchmark` whose options are the fields of a frozen
dataclass. The trainer, the methods, the figures and the results file know nothing else about it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.settings import Settings

__all__ = ["Batch", "Benchmark", "Data", "Meter", "Split", "Task"]

Targets = dict[str, Tensor]


class Batch(NamedTuple):
    """One batch: what the backbone takes, and targets ``{head: [B, tasks]}`` in the same order."""

    inputs: Any
    targets: Targets


class Split(Protocol):
    """One of the three parts of a data set."""

    def __len__(self) -> int:
        """Number of examples."""

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All examples once, in batches on the device that the data was loaded for.

        The order is drawn from ``generator``, or is the same every time when there is none.
        """

    def steps(self, batch_size: int) -> int:
        """Number of batches that :meth:`batches` will give."""


class Meter(Protocol):
    """Sums up one pass over a split in constant memory."""

    def update(self, predictions: Targets, targets: Targets) -> None:
        """Take in a batch, both as ``{head: [B, tasks]}`` in the units of training."""

    def compute(self) -> list[float]:
        """The metric of every task, in its reported unit, in the order of the benchmark."""


@dataclass(frozen=True)
class Data:
    """A loaded data set.

    Attributes:
        train: Training split.
        validation: Split that the schedule and the selection look at.
        test: Split that nothing but the final report looks at.
        constants: Per task, the constant prediction that the training rows suggest, as
            ``{head: [tasks]}`` in the units of training: the reference "predict the mean".
        meter: Makes a new meter of the benchmark's metric.
        about: Whatever identifies the data in a results file (source, sizes, checksum, ...).
    """

    train: Split
    validation: Split
    test: Split
    constants: Targets
    meter: Callable[[], Meter]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One task of a benchmark.

    Attributes:
        name: Short name, unique in its benchmark; used in files.
        symbol: Name for tables and figures.
        unit: Unit of the reported metric; empty when it has none.
        single_task: Published metric of a network trained for this task alone.
        higher_is_better: True for accuracies, False for errors.
    """

    name: str
    symbol: str
    unit: str
    single_task: float
    higher_is_better: bool = False


@dataclass(frozen=True)
class Benchmark(ABC):
    """Data, backbone, heads and default settings; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[str]
    single_task_source: ClassVar[str]
    default_settings: ClassVar[Settings] = Settings()

    @property
    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """The tasks, heads in their order and tasks of a head in theirs."""

    @abstractmethod
    def load(self, device: torch.device) -> Data:
        """Read (and, the first time, build) the data set.

        Raises:
            DataError: It is missing or damaged; the message says what to do.
        """

    @abstractmethod
    def backbone(self) -> nn.Module:
        """A freshly initialised network from inputs to features ``[B, d]``."""

    @abstractmethod
    def heads(self, bias: bool) -> dict[str, Head]:
        """Freshly initialised heads, ``{name: head}``, on the backbone's features."""

    def options(self) -> dict[str, Any]:
        """The options as plain values, for a results file."""
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, Any]:
        """The options that decide the numbers; a subclass leaves out those that only say where."""
        return self.options()
