"""QM9 as a benchmark: eleven properties of a molecule from one message-passing network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from bayesagg_pyro import heads
from experiments import published
from experiments.benchmark import Benchmark, Data, Task
from experiments.errors import SettingsError
from experiments.qm9.dataset import Features, Source, load, look
from experiments.qm9.prepared import HEAD, prepare
from experiments.qm9.targets import BENCHMARK
from experiments.scores import MeanAbsoluteError, mixed
from experiments.settings import Settings, require_numbers
from models import MessagePassing, MessagePassingPyG, MissingPackageError


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
        network: ``"factorised"`` (fast), ``"bfloat16"`` (the same with messages between atoms of
            fewer digits, for processors that multiply them faster) or ``"pyg"`` (the same function
            through torch-geometric).
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
    single_task_source: ClassVar[str] = published.load("qm9").single_task_source
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
    network: Literal["factorised", "bfloat16", "pyg"] = "factorised"
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
            for p, row in zip(BENCHMARK, published.load("qm9").single_task, strict=True)
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
            groups=self.groups,
            device=device,
        )
        return Data(
            prepared.train,
            prepared.validation,
            prepared.test,
            constants={HEAD: prepared.train.targets[HEAD].mean(0)},
            meter=mixed({HEAD: partial(MeanAbsoluteError, prepared.scale.error_scale)}),
            about=whole.about,
        )

    def backbone(self) -> nn.Module:
        """The message-passing network; all its forms start from the same weights.

        Raises:
            SettingsError: ``network="pyg"`` and torch-geometric is not installed.
        """
        kinds: dict[str, Callable[..., nn.Module]] = {
            "factorised": MessagePassing,
            "bfloat16": partial(MessagePassing, messages=torch.bfloat16),
            "pyg": MessagePassingPyG,
        }
        try:
            return kinds[self.network](
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
