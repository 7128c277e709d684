"""QM9 as a benchmark: eleven properties of a molecule from one message-passing network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from bayesagg_pyro import heads
from experiments import published
from experiments.benchmark import Batch, Benchmark, Data, Task
from experiments.errors import SettingsError
from experiments.qm9.dataset import Features, Source, load, look
from experiments.qm9.fixed import FixedBatches, Shape
from experiments.qm9.prepared import Part, Prepared, prepare
from experiments.qm9.targets import BENCHMARK
from experiments.scores import MeanAbsoluteError, mixed
from experiments.settings import Settings, require_numbers
from models import MessagePassing, MessagePassingPyG, MissingPackageError

__all__ = ["HEAD", "Qm9"]

HEAD = "properties"


class _Split:
    """One part of the prepared data, as the trainer wants it."""

    def __init__(self, prepared: Prepared, part: Part, groups: int) -> None:
        self._prepared, self._part, self._groups = prepared, part, groups
        self._fixed: FixedBatches | None = None

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

    def fixed_batches(
        self, batch_size: int, generator: torch.Generator
    ) -> Sequence[tuple[Shape, torch.Tensor]]:
        """A pass in batches of fixed shapes, in the same order as :meth:`batches`."""
        if self._fixed is None or self._fixed.batch_size != batch_size:
            self._fixed = FixedBatches(
                self._prepared.molecules,
                self._prepared.rows(self._part),
                batch_size,
                groups=self._groups,
            )
        return self._fixed.draw(generator)

    def gather(self, shape: Shape, rows: torch.Tensor) -> Batch:
        """The batch of these rows, assembled on the device."""
        graphs, targets = self._prepared.molecules.gather(rows, shape)
        return Batch(graphs, {HEAD: targets})


@dataclass(frozen=True)
class Qm9(Benchmark):
    """QM9, eleven properties of molecules; the defaults are those of the published comparison.

    Attributes:
        molecules: Training molecules; None for all 110,831.
        validation: Validation molecules; None for all 10,000, or a tenth of ``molecules`` but at
            least 1,000.
        test: Test molecules, likewise.
        max_atoms: Only molecules of at most so many atoms, for studies at a smaller scale; None for
            all.
        split_seed: Which molecules are in which part.
        features: ``"pyg"``, as published benchmarks (five columns are always zero), or
            ``"chemistry"``, filled by RDKit.
        peer_normalisation: Mean and standard deviation of targets from all molecules, test set
            included, as published code does; otherwise from the training molecules.
        source: ``"qm9pack"`` or ``"pyg"``.
        data: A built data file, or the folder to look in; None for the default place.
        network: ``"factorised"`` (fast) or ``"pyg"`` (the same function through torch-geometric).
        width: Width of node states and of the features.
        edge_width: Width of the hidden layer on edges.
        passes: Rounds of message passing.
        readout_steps: Steps of the set-to-set readout.
        activation: Of the features: ``"relu"``, as published, or one without dead units:
            ``"silu"``, ``"elu"``, ``"softplus"``, ``"tanh"``.
        groups: A batch is cut into at most so many groups of molecules of similar size.
    """

    name: ClassVar[str] = "qm9"
    title: ClassVar[str] = "QM9"
    metric: ClassVar[str] = "mean absolute error"
    single_task_source: ClassVar[str] = published.QM9_SOURCE
    default_settings: ClassVar[Settings] = Settings()
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"power": (0.75, 0.85, 0.95)}

    places: ClassVar[frozenset[str]] = frozenset({"data", "groups"})

    molecules: int | None = None
    validation: int | None = None
    test: int | None = None
    max_atoms: int | None = None
    split_seed: int = 0
    features: Features = "pyg"
    peer_normalisation: bool = False
    source: Source = "qm9pack"
    data: str | None = None
    network: Literal["factorised", "pyg"] = "factorised"
    width: int = 64
    edge_width: int = 128
    passes: int = 3
    readout_steps: int = 3
    activation: Literal["relu", "silu", "elu", "softplus", "tanh"] = "relu"
    groups: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("width", "edge_width", "passes", "readout_steps", "groups")
        require_numbers(self, *names, least=1)

    @property
    def tasks(self) -> Sequence[Task]:
        """The eleven properties in the order of the published tables."""
        return tuple(
            Task(p.name, p.symbol, p.reported_unit, row)
            for p, row in zip(BENCHMARK, published.QM9_SINGLE_TASK, strict=True)
        )

    def look(self) -> str:
        """Whether the file is built, or what it is built from."""
        return look(self.source, path=self.data)

    def load(self, device: torch.device) -> Data:
        """Read the set (built the first time), split it, and keep it on ``device``."""
        whole = load(self.source, path=self.data, features=self.features)
        prepared = prepare(
            whole,
            seed=self.split_seed,
            molecules=self.molecules,
            validation=self.validation,
            test=self.test,
            max_atoms=self.max_atoms,
            peer_normalisation=self.peer_normalisation,
            device=device,
        )
        return Data(
            train=_Split(prepared, "train", self.groups),
            validation=_Split(prepared, "validation", self.groups),
            test=_Split(prepared, "test", self.groups),
            constants={HEAD: prepared.targets("train").mean(0)},
            meter=mixed({HEAD: partial(MeanAbsoluteError, prepared.scale.error_scale)}),
            about=whole.about,
        )

    def backbone(self) -> nn.Module:
        """The message-passing network; both forms start from the same weights.

        Raises:
            SettingsError: ``network="pyg"`` and torch-geometric is not installed.
        """
        kind = MessagePassing if self.network == "factorised" else MessagePassingPyG
        try:
            return kind(
                width=self.width,
                edge_width=self.edge_width,
                steps=self.passes,
                set2set_steps=self.readout_steps,
                out_features=self.width,
                activation=self.activation,
            )
        except MissingPackageError as error:
            raise SettingsError(f"network = {self.network!r} cannot work: {error}") from error

    def heads(self, bias: bool) -> dict[str, heads.Head]:
        """One Gaussian head with eleven tasks."""
        return {HEAD: heads.Gaussian(self.width, len(BENCHMARK), bias=bias, standardise=False)}
