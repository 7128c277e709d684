"""ChestX-ray14 as a multi-task benchmark: fourteen rare findings, one binary task each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments import published
from experiments.benchmark import Data, Task
from experiments.chestxray14.release import FINDINGS, Overlap, parts, read
from experiments.files.cache import default_folder
from experiments.images.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    colour_jitter,
    normalise,
    random_erase,
)
from experiments.images.decode import Form, decoded
from experiments.images.residual import OnResNet
from experiments.images.split import parts_of
from experiments.rows import log_odds
from experiments.scores import AreaUnderCurve, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings

HEAD: Final = "findings"
JITTER: Final = 0.4
ERASE: Final = 0.25

SINGLE_TASK: Final = published.load("chestxray14").single_task
"""Area under the ROC curve of single-task networks, in the order of the findings."""


@dataclass(frozen=True)
class ChestXray14(OnResNet):
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
    """

    name: ClassVar[str] = "chestxray14"
    title: ClassVar[str] = "ChestX-ray14"
    metric: ClassVar[str] = "area under the ROC curve"
    single_task_source: ClassVar[str] = published.load("chestxray14").single_task_source
    default_settings: ClassVar[Settings] = Settings(
        epochs=100, batch_size=256, learning_rate=1e-3, schedule="steps", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {"pretrain": 3, "power": 5e-4, "prior_variance": 1.0}
    }
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"power": (5e-2, 5e-3, 5e-4), "pretrain": (1, 3)}

    data: str = "ChestX-ray14"
    split_seed: int = 0
    overlap: Overlap = "error"
    depth: int = 34
    weights: str | None = "imagenet"
    size: int = 224

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
        return Data(
            *parts_of(pixels, {HEAD: release.findings}, rows, device, prepare),
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
