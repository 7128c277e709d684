"""ChestX-ray14 as a multi-task benchmark: fourteen rare findings, one binary task each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.chestxray14.release import FINDINGS, Overlap, parts, read
from experiments.files.cache import default_folder
from experiments.images.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    colour_jitter,
    normalise,
    random_erase,
)
from experiments.images.backbones import residual_network
from experiments.images.decode import Form, decoded
from experiments.images.split import ImageSplit
from experiments.images.store import Images
from experiments.images.targets import log_odds
from experiments.scores import AreaUnderCurve, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings, require, require_numbers

__all__ = ["HEAD", "SINGLE_TASK", "ChestXray14"]

HEAD: Final = "findings"
JITTER: Final = 0.4
ERASE: Final = 0.25

SINGLE_TASK: Final = (
    *(0.7543, 0.8615, 0.7132, 0.8212, 0.8224, 0.6333, 0.7357),
    *(0.7647, 0.6830, 0.6208, 0.5894, 0.6389, 0.5710, 0.7701),
)
"""Published area under the ROC curve of single-task networks, in the order of the findings."""


@dataclass(frozen=True)
class ChestXray14(Benchmark):
    """ChestX-ray14, fourteen findings in X-ray images; the defaults are the paper's.

    The test images are those of the official list, 23 % of all; validation is 10 % of all images,
    drawn by patient from the other list. A finding that does not occur in a part (or is all there
    is) has no area under the curve there: it is reported as unknown and left out of Δm.

    Images are resized to ``size`` and kept in grey, as they are. Training images have their
    brightness and contrast changed by up to 40 % (on grey images, this is all that a jitter of
    colours does), and a quarter of them a rectangle of noise.

    Attributes:
        data: The folder with the NIH release.
        split_seed: Which patients of the official training list are for validation.
        overlap: What to do when a patient is on both lists: ``"error"``, or ``"drop"`` their
            training images.
        depth: Of the residual network, 18 or 34.
        weights: What it starts from: ``"imagenet"``, a file with a state dict, or None (random).
        size: Height and width of the images.
        width: Features of the network.
    """

    name: ClassVar[str] = "chestxray14"
    title: ClassVar[str] = "ChestX-ray14"
    metric: ClassVar[str] = "area under the ROC curve"
    single_task_source: ClassVar[str] = (
        "Achituve et al., Bayesian Uncertainty for Gradient Aggregation in Multi-Task Learning, "
        "ICML 2024: single-task row of the full ChestX-ray14 table, 3 seeds"
    )
    default_settings: ClassVar[Settings] = Settings(
        epochs=100, batch_size=256, learning_rate=1e-3, schedule="steps", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {"pretrain": 3, "power": 5e-4, "prior_variance": 1.0}
    }
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"power": (5e-2, 5e-3, 5e-4), "pretrain": (1, 3)}

    packages: ClassVar[Sequence[str]] = ("pillow", "torchvision")
    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = frozenset({"size", "width"})

    data: str = "ChestX-ray14"
    split_seed: int = 0
    overlap: Overlap = "error"
    depth: int = 34
    weights: str | None = "imagenet"
    size: int = 224
    width: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 16, "size", self.size, "give at least 16 pixels")
        require_numbers(self, "width", least=1)
        require(self.depth in (18, 34), "depth", self.depth, "give 18 or 34")

    @property
    def tasks(self) -> Sequence[Task]:
        """The findings."""
        return tuple(
            Task(name.lower(), name.replace("_", " "), "", value, higher_is_better=True)
            for name, value in zip(FINDINGS, SINGLE_TASK, strict=True)
        )

    def look(self) -> str:
        """How many listed images there are."""
        release = read(Path(self.data), self.overlap)
        return f"{len(release.files):,} images, all that are listed, in {self.data}"

    def load(self, device: torch.device) -> Data:
        """Read table and lists, decode the images (the first time), and split them."""
        release = read(Path(self.data), self.overlap)
        rows = parts(release, self.split_seed)
        pixels = decoded("chestxray14", release.files, Form(self.size, grey=True), default_folder())
        make = partial(
            ImageSplit, Images(pixels, device), {HEAD: release.findings}, transform=prepare
        )
        return Data(
            train=make(rows.train),
            validation=make(rows.validation),
            test=make(rows.test),
            constants={HEAD: log_odds(release.findings[rows.train])},
            meter=mixed(
                {HEAD: AreaUnderCurve},
                calibrations={HEAD: partial(Calibration, FINDINGS, "binary", mean=True)},
            ),
            about={
                "patients": {
                    name: len(release.patients[part].unique()) for name, part in vars(rows).items()
                },
                "positives": {
                    name: dict(
                        zip(FINDINGS, release.findings[part].sum(0).int().tolist(), strict=True)
                    )
                    for name, part in vars(rows).items()
                },
            },
            left_out={"training images of patients of the test": release.dropped},
        )

    def backbone(self) -> nn.Module:
        """A residual network."""
        return residual_network(self.depth, self.weights, self.width)

    def heads(self, bias: bool) -> dict[str, Head]:
        """One Bernoulli head with fourteen tasks."""
        return {HEAD: heads.Bernoulli(self.width, len(FINDINGS), bias=bias)}


def prepare(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Three equal channels, normalised as ImageNet's; with a generator, augmented."""
    values = images.float() / 255
    if generator is not None:
        values = colour_jitter(values, JITTER, generator)
    values = normalise(values, IMAGENET_MEAN, IMAGENET_STD)
    if generator is not None:
        values = random_erase(values, ERASE, generator)
    return values
