"""Tox21 as a multi-task benchmark: twelve binary tasks, a sixth of the labels missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import torch
from torch import nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.files.cache import default_folder
from experiments.rows import log_odds, parts_of
from experiments.scores import AreaUnderCurve, AveragePrecision, MeanOverTasks, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings, require_numbers
from experiments.tox21.chemistry import EDGE_FEATURES, NODE_FEATURES, GraphRows, describe, graphs
from experiments.tox21.release import ASSAYS, Split, parts, read, require_table
from models import MessagePassing
from models.perceptron import layers

HEAD: Final = "assays"

Kind = Literal["mlp", "mpnn"]

SINGLE_TASK: Final = (
    *(0.72, 0.7986, 0.8584, 0.7275, 0.6709, 0.7604),
    *(0.7139, 0.7678, 0.7034, 0.7081, 0.8667, 0.7223),
)
"""Area under the ROC curve of single-task networks, in the order of the assays."""


@dataclass(frozen=True)
class Tox21(Benchmark):
    """Tox21: is a molecule toxic in each of twelve assays; a sixth of the labels is missing.

    Of the 7,831 molecules of the release, RDKit reads 7,823. They are described by fingerprints,
    which are kept in the folder for built data, so that only the first run waits for RDKit. With
    one core a run of the defaults takes about 20 s. RDKit is an extra of its own: ``pip install
    rdkit``.

    Attributes:
        data: The released file, ``tox21.csv.gz``, or the table in it; see
            ``experiments/tox21/release.py`` for where it is released.
        split: Training, validation and test molecules (80, 10 and 10 %) at ``"random"``, or by
            ``"scaffold"``: molecules of the test have rings that occur in no other part.
        split_seed: Which molecules are in which part, where that is random.
        bits: Length of the fingerprints.
        radius: Of what a bit of the fingerprints stands for, in bonds.
        network: Layers on fingerprints (``"mlp"``), or the message-passing network of QM9 on the
            molecules' graphs (``"mpnn"``; minutes, and of another width and rate: the preset of
            that name).
        width: Width of the hidden layers and of the features.
        layers: Number of layers on fingerprints.
        dropout: Share of each such layer's units that a training step leaves out.
        edge_width: Width of the hidden layer on edges of the message-passing network.
        passes: Its rounds of message passing.
        groups: Its batches are cut into at most so many groups of molecules of similar size.
    """

    name: ClassVar[str] = "tox21"
    title: ClassVar[str] = "Tox21"
    metric: ClassVar[str] = "area under the ROC curve"
    single_task_source: ClassVar[str] = (
        "own networks (python -m experiments run tox21 --method stl --seeds 0 1 2), mean over "
        "seeds at the best epoch on validation, random split"
    )
    default_settings: ClassVar[Settings] = Settings(
        epochs=20,
        batch_size=128,
        learning_rate=1e-3,
        schedule="cosine",
        weight_decay=1e-4,
        head_bias=True,
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {"pretrain": 1, "rule": "default", "prior_variance": 1.0, "reduction": "sum"}
    }

    packages: ClassVar[Sequence[str]] = ("rdkit",)
    places: ClassVar[frozenset[str]] = frozenset({"data", "groups"})
    later: ClassVar[frozenset[str]] = frozenset({"network", "edge_width", "passes"})

    data: str = "tox21.csv.gz"
    split: Split = "random"
    split_seed: int = 0
    bits: int = 1024
    radius: int = 2
    network: Kind = "mlp"
    width: int = 256
    layers: int = 2
    dropout: float = 0.5
    edge_width: int = 16
    passes: int = 2
    groups: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "dropout", least=0, below=1)
        sizes = ("bits", "radius", "width", "layers", "edge_width", "passes", "groups")
        require_numbers(self, *sizes, least=1)

    @property
    def tasks(self) -> Sequence[Task]:
        """The assays."""
        return tuple(
            Task(name.lower(), name, "", value, higher_is_better=True)
            for name, value in zip(ASSAYS, SINGLE_TASK, strict=True)
        )

    def look(self) -> str:
        """Where the table is."""
        return f"{require_table(Path(self.data))} (7,831 molecules are released)"

    def load(self, device: torch.device) -> Data:
        """Read the table, describe the molecules (the first time), and split them."""
        release = read(Path(self.data))
        found = describe(release.smiles, self.radius, self.bits, default_folder())
        labels = release.labels[found.rows]
        rows = parts(found.scaffolds, self.split, self.split_seed)
        kept = set(found.rows.tolist())
        unreadable = [name for row, name in enumerate(release.names) if row not in kept]
        train, validation, test = parts_of(found.fingerprints, {HEAD: labels}, rows, device)
        if self.network == "mpnn":
            readable = [release.smiles[row] for row in found.rows.tolist()]
            whole = graphs(readable, default_folder(), device)
            train, validation, test = (
                GraphRows(whole, part, made.targets, self.groups)
                for part, made in zip(vars(rows).values(), (train, validation, test), strict=True)
            )
        return Data(
            train,
            validation,
            test,
            constants={HEAD: log_odds(labels[rows.train])},
            meter=mixed(
                {HEAD: AreaUnderCurve},
                {
                    "mean AUC": (HEAD, partial(MeanOverTasks, AreaUnderCurve)),
                    "mean AP": (HEAD, partial(MeanOverTasks, AveragePrecision)),
                },
                {HEAD: partial(Calibration, ASSAYS, "binary", mean=True)},
            ),
            about={
                "molecules": len(release.names),
                "unreadable": unreadable,
                "positives": {
                    name: dict(zip(ASSAYS, labels[part].nansum(0).int().tolist(), strict=True))
                    for name, part in vars(rows).items()
                },
            },
            left_out={"molecules that RDKit cannot read": len(unreadable)},
        )

    def backbone(self) -> nn.Module:
        """Layers with ReLU and dropout on a fingerprint, or QM9's network on the graph."""
        if self.network == "mpnn":
            return MessagePassing(
                NODE_FEATURES,
                EDGE_FEATURES,
                width=self.width,
                edge_width=self.edge_width,
                steps=self.passes,
                out_features=self.width,
            )
        widths = [self.bits, *[self.width] * self.layers]
        return layers(widths, lambda: [nn.ReLU(), nn.Dropout(self.dropout)])

    def heads(self, bias: bool) -> dict[str, Head]:
        """One Bernoulli head with twelve tasks."""
        return {HEAD: heads.Bernoulli(self.width, len(ASSAYS), bias=bias, missing="nan")}
