"""What a benchmark is: data, a backbone, heads and default settings.

A new benchmark is a subclass of :class:`Benchmark` whose options are the fields of a frozen
dataclass. The trainer, the methods, the figures and the results file know nothing else about it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.errors import DataError, SettingsError
from experiments.scores.calibration import observed
from experiments.scores.delta_m import delta_m
from experiments.settings import Settings, require_seed, require_words

Targets = dict[str, Any]
"""As heads take them: a tensor, or (values, mask) where some are missing."""
Values = Sequence["float | None"]
"""A metric per task; None where the split cannot tell (no example of a class, say)."""
Figures = Mapping[str, "float | None"]
"""Metrics beyond one per task: an accuracy over all of them, calibration."""


class Batch(NamedTuple):
    """One batch: what the backbone takes, and targets as the heads take them, in the same order.

    Targets are ``{head: [B, tasks]}``: numbers, 0 or 1, or class indices (int64); or (values, mask)
    of them, where some are missing. B is the number of rows of the backbone's features.
    """

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
        """Number of batches that :meth:`batches` will give, the last one possibly smaller."""
        return -(-len(self) // batch_size)


class Meter(Protocol):
    """Sums up one pass over a split in constant memory."""

    def update(self, predictions: dict[str, Any], targets: Targets) -> None:
        """Take in a batch: the heads' outputs, and targets, in the units of training.

        Predictive distributions in place of outputs, where ``Data.likelihoods`` asks for them.
        """

    def compute(self) -> Values:
        """The metric of every task, in its reported unit, in the order of the benchmark."""

    def figures(self) -> Figures:
        """Metrics beyond one per task: an accuracy over all of them, calibration."""


@dataclass(frozen=True)
class Data:
    """A loaded data set.

    Attributes:
        train: Training split.
        validation: Split that the schedule and the selection look at.
        test: Split that nothing but the final report looks at.
        constants: Per head, the constant output that the training rows suggest, [tasks] (or
            [classes]) in the units of training: the reference "predict the mean".
        meter: Makes a new meter of the benchmark's metric.
        about: Whatever identifies the data in a results file (source, sizes, checksum, ...).
        likelihoods: Heads, where the meter takes predictive distributions: a method's own,
            calibrated to the validation split, or these heads' likelihoods of the constants. None
            where it takes point predictions.
        left_out: How many of what is in no part, ``{what, in words: how many}``.
        missing: Share of the training labels that are missing, by the name of the loss; None where
            ``train.targets`` tells, ``{head: [N, tasks]}`` with NaN (of classes: below 0) for
            missing ones, or where there are none.
    """

    train: Split
    validation: Split
    test: Split
    constants: dict[str, Tensor]
    meter: Callable[[], Meter]
    about: Mapping[str, Any]
    likelihoods: Mapping[str, Head] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, float] | None = None

    def contents(self, losses: Sequence[str]) -> dict[str, Any]:
        """Examples of each part, missing labels, and what was left out, as plain values.

        Args:
            losses: Names of what is trained, in the order of the targets.
        """
        missing = self.missing
        if missing is None:
            targets = getattr(self.train, "targets", None)
            values = [*targets.values()] if isinstance(targets, Mapping) else []
            plain = [t.reshape(len(t), -1) for t in values if isinstance(t, Tensor)]
            columns = [c for t in plain for c in t.unbind(1)] if len(plain) == len(values) else []
            shares = [float((~observed(column)).float().mean()) for column in columns]
            missing = dict(zip(losses, shares, strict=False))
        return {
            "examples": {
                "train": len(self.train),
                "validation": len(self.validation),
                "test": len(self.test),
            },
            "missing": {name: share for name, share in missing.items() if share > 0},
            "left_out": {what: count for what, count in self.left_out.items() if count},
        }


@dataclass(frozen=True)
class Task:
    """One task of a benchmark, or one of several metrics that a task is measured by.

    Attributes:
        name: Short name, unique in its benchmark; used in files.
        symbol: Name for tables and figures.
        unit: Unit of the reported metric; empty when it has none.
        single_task: Metric of a network trained for this task alone; None if nobody knows.
        higher_is_better: True for accuracies, False for errors.
    """

    name: str
    symbol: str
    unit: str
    single_task: float | None
    higher_is_better: bool = False


@dataclass(frozen=True)
class Benchmark(ABC):
    """Data, backbone, heads and default settings; subclasses are frozen dataclasses of options.

    Attributes:
        name: As on the command line and in files.
        title: For people.
        metric: What the tasks are measured by.
        single_task_source: Where the single-task metrics are from.
        score_name: Name of what :meth:`score` gives, in per cent.
        default_settings: The paper's.
        smallest_batch: Examples that a training step needs; batch normalisation needs two.
        joint: Heads whose outputs are one task together, such as the coordinates of a vector; STL
            trains one network for them.
        watched: Examples whose weights are watched over training; fewer where one has many rows.
        method_options: The paper's options of methods for this benchmark, where they differ from
            the methods' own defaults: ``{method: {option: value}}``.
        grid: The values that the paper searched, ``{option of bayesagg: values}``.
        packages: What it needs beyond the library and NumPy, as pip knows it.
        places: Options that only say where data lie or how they are handed over.
        later: Options that came after others had left records: at their defaults they decide
            nothing that those records do not know.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[str]
    single_task_source: ClassVar[str]
    score_name: ClassVar[str] = "Δm"
    default_settings: ClassVar[Settings] = Settings()
    smallest_batch: ClassVar[int] = 1
    joint: ClassVar[frozenset[str]] = frozenset()
    watched: ClassVar[int] = 20
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    packages: ClassVar[Sequence[str]] = ()
    places: ClassVar[frozenset[str]] = frozenset()
    later: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        require_words(self)
        if (seed := getattr(self, "split_seed", None)) is not None:
            require_seed("split_seed", seed)

    @property
    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """The tasks, heads in their order and tasks of a head in theirs."""

    @property
    def losses(self) -> Sequence[str]:
        """Names of what is trained, likewise: the tasks unless they are measured otherwise."""
        return [task.name for task in self.tasks]

    @abstractmethod
    def load(self, device: torch.device) -> Data:
        """Read (and, the first time, build) the data set.

        Raises:
            DataError: It is missing or damaged; the message says what to do.
        """

    def look(self) -> str:
        """What of the data is there, in a line, without reading it; empty where nobody looked.

        Raises:
            DataError: Something is missing; the message says what to do.
        """
        return ""

    @abstractmethod
    def backbone(self) -> nn.Module:
        """A newly initialised network from inputs to features ``[B, d]``."""

    @abstractmethod
    def heads(self, bias: bool) -> dict[str, Head]:
        """Newly initialised heads, ``{name: head}``, on the backbone's features.

        They keep the units of the data, under all methods: :meth:`load` standardises numbers.
        """

    def delta_m(self, values: Values) -> float | None:
        """Δm in per cent; None when a task has no single-task metric to compare with.

        Tasks that a split cannot tell anything about are left out.

        Raises:
            DataError: The split tells nothing about any task.
        """
        told: list[float] = []
        single: list[float] = []
        higher: list[bool] = []
        for value, task in zip(values, self.tasks, strict=True):
            if task.single_task is None:
                return None
            if value is not None:
                told.append(value)
                single.append(task.single_task)
                higher.append(task.higher_is_better)
        if not told:
            raise DataError("a split tells nothing about any task: give it more examples")
        return delta_m(told, single, higher)

    def score(self, values: Values, figures: Figures) -> float:
        """What the schedule and the selection minimise, in per cent: Δm unless a subclass differs.

        Raises:
            DataError: There is no Δm.
        """
        value = self.delta_m(values)
        if value is None:
            raise DataError(
                f"Δm of {self.title} has no single-task metrics to compare with: train a network "
                "for each task alone first"
            )
        return value

    def options(self) -> dict[str, Any]:
        """The options as plain values, for a results file."""
        return dataclasses.asdict(self)

    def at(self, data: str) -> Benchmark:
        """The same with its data from another place.

        Raises:
            SettingsError: The benchmark reads no data from a place of the user's.
        """
        if "data" not in self.options():
            raise SettingsError(
                f"data = {data!r} cannot work: {self.title} reads none; leave it out"
            )
        return dataclasses.replace(self, data=data)  # type: ignore[call-arg]

    def identity(self) -> dict[str, Any]:
        """The options that decide the numbers."""
        usual = {item.name: item.default for item in dataclasses.fields(self)}
        return {
            name: value
            for name, value in self.options().items()
            if name not in self.places and not (name in self.later and value == usual[name])
        }
