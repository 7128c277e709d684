"""UTKFace as a mixed benchmark: a regression, a binary and a multi-class task.

Labels are from the file names, ``[age]_[gender]_[race]_[date&time].jpg`` (or ``.jpg.chip.jpg``). A
few lack a label; such files are left out and listed, and no label is ever guessed.
"""

from __future__ import annotations

import re
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
from experiments.errors import DataError
from experiments.files.cache import default_folder
from experiments.images.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    center_crop,
    flip,
    normalise,
    random_crop,
)
from experiments.images.decode import Form, decoded
from experiments.images.files import images_in, require_folder, some
from experiments.images.residual import OnResNet
from experiments.images.split import parts_of
from experiments.rows import log_frequencies, log_odds, stratified
from experiments.scores import BinaryAccuracy, ClassAccuracy, MeanSquaredError, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings

ETHNICITIES: Final = ("white", "black", "asian", "indian", "other")
"""In the order of the released codes 0 to 4."""

OLDEST: Final = 116
"""Largest age of the data set."""

# Everything before the first dot. One released name has a blank there; its labels are in order.
_NAME: Final = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+ ?")


@dataclass(frozen=True)
class Faces:
    """The labelled files of a folder.

    Attributes:
        files: N files.
        ages: [N] int64, in years.
        genders: [N] int64, 0 male and 1 female.
        ethnicities: [N] int64, an index of :data:`ETHNICITIES`.
        skipped: Names of image files without all labels.
        others: Number of files that are no images.
    """

    files: tuple[Path, ...]
    ages: Tensor
    genders: Tensor
    ethnicities: Tensor
    skipped: tuple[str, ...]
    others: int


def parse(name: str) -> tuple[int, int, int] | None:
    """Age, gender and ethnicity, or None for a name that does not say all three."""
    match = _NAME.fullmatch(name.split(".")[0])
    if match is None:
        return None
    age, gender, ethnicity = map(int, match.groups())
    return (age, gender, ethnicity) if age <= OLDEST else None


def read(folder: Path) -> Faces:
    """All labelled images directly in ``folder``.

    Raises:
        DataError: It is no folder, holds no images, or none with a name of UTKFace.
    """
    what = "UTKFace's images (25_1_0_20170116174525125.jpg.chip.jpg, ...)"
    require_folder(folder, what)
    images, others = images_in(folder)
    if not images:
        inner = [f.name for f in sorted(folder.iterdir()) if f.is_dir() and images_in(f)[0]]
        hint = f" There are images in {some(inner)} inside it." if inner else ""
        raise DataError(f"{folder} holds no images: give the folder that holds {what}.{hint}")
    files, labels, skipped = [], [], []
    for file in images:
        label = parse(file.name)
        if label is None:
            skipped.append(file.name)
        else:
            files.append(file)
            labels.append(label)
    if not files:
        raise DataError(
            f"{folder} holds {len(images):,} images, and none is named [age]_[gender]_[race]_"
            f"[date&time].jpg ({some([*map(repr, skipped)])}): give the folder that holds {what}"
        )
    ages, genders, ethnicities = torch.tensor(labels).unbind(1)
    return Faces(tuple(files), ages, genders, ethnicities, tuple(skipped), others)


@dataclass(frozen=True)
class UtkFace(OnResNet):
    """UTKFace, age, gender and ethnicity of faces; the defaults are the paper's.

    Faces are split 70/10/20 by ``split_seed``, stratified by age. Ages are standardised by mean and
    standard deviation of the training faces, and the error of age is reported on that scale, as
    published (the published table shows it times ten). Images are resized to a little more than
    ``size``, 140×140 for 128; a training image is a random piece of that size, flipped half of the
    time, any other is the middle. The paper mentions pre-trained weights for ChestX-ray14 only.

    Attributes:
        data: The folder with the released images.
        split_seed: Which faces are in which part.
    """

    name: ClassVar[str] = "utkface"
    title: ClassVar[str] = "UTKFace"
    metric: ClassVar[str] = "mean squared error of the standardised age, and accuracy"
    single_task_source: ClassVar[str] = published.load("utkface").single_task_source
    default_settings: ClassVar[Settings] = Settings(
        epochs=100,
        batch_size=128,
        learning_rate=1e-3,
        schedule="steps",
        weight_decay=1e-4,
        head_bias=True,
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {
            "pretrain": 10,
            "power": {"age": 0.5, "gender": 0.05, "ethnicity": 0.05},
            "prior_variance": 1.0,
        }
    }
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "power": tuple(
            {"age": regression, "gender": classification, "ethnicity": classification}
            for regression in (0.3, 0.5, 0.8)
            for classification in (0.005, 0.05, 0.1)
        )
    }

    data: str = "UTKFace"
    split_seed: int = 0

    @property
    def tasks(self) -> Sequence[Task]:
        """Age, gender and ethnicity."""
        return (
            Task("age", "age", "", 0.140),
            Task("gender", "gender", "%", 92.32, higher_is_better=True),
            Task("ethnicity", "ethnicity", "%", 82.42, higher_is_better=True),
        )

    def look(self) -> str:
        """How many faces there are."""
        faces = read(Path(self.data))
        return f"{len(faces.files):,} faces in {self.data} (23,708 are released)"

    def load(self, device: torch.device) -> Data:
        """Read the names, decode the images (the first time), and split them."""
        faces = read(Path(self.data))
        parts = stratified(faces.ages, self.split_seed)
        if min(parts.sizes().values()) == 0 or len(parts.train) < 2:
            raise DataError(
                f"{len(faces.files)} faces are too few for three parts ({parts.sizes()}): give a "
                "folder with at least 20"
            )
        ages = faces.ages[parts.train].double()
        mean, std = float(ages.mean()), float(ages.std())
        if std == 0:
            raise DataError(f"all training faces are {mean:g} years old: give more faces")
        targets = {
            "age": ((faces.ages.double() - mean) / std).float()[:, None],
            "gender": faces.genders.float()[:, None],
            "ethnicity": faces.ethnicities[:, None],
        }
        form = Form(round(self.size * 140 / 128))  # of which pieces are taken
        pixels = decoded("utkface", faces.files, form, default_folder())
        return Data(
            *parts_of(pixels, targets, parts, device, partial(prepare, size=self.size)),
            constants={
                "age": torch.zeros(1),
                "gender": log_odds(targets["gender"][parts.train]),
                "ethnicity": log_frequencies(targets["ethnicity"][parts.train], len(ETHNICITIES)),
            },
            meter=mixed(
                {"age": MeanSquaredError, "gender": BinaryAccuracy, "ethnicity": ClassAccuracy},
                calibrations={
                    "gender": partial(Calibration, ["gender"], "binary"),
                    "ethnicity": partial(Calibration, ["ethnicity"], "classes"),
                },
            ),
            about={"age_mean": mean, "age_std": std, "skipped_names": list(faces.skipped)},
            left_out={
                "images without all labels in their name": len(faces.skipped),
                "files that are no images": faces.others,
            },
        )

    def heads(self, bias: bool) -> dict[str, Head]:
        """One head per task; the regression head has a bias if the others do."""
        return {
            "age": heads.Gaussian(self.width, tasks=1, bias=bias, standardise=False),
            "gender": heads.Bernoulli(self.width, tasks=1, bias=bias),
            "ethnicity": heads.Categorical(self.width, classes=len(ETHNICITIES), bias=bias),
        }


def prepare(
    images: Tensor, generator: torch.Generator | None, *, size: int = UtkFace.size
) -> Tensor:
    """The paper's augmentation; without a generator the middle of each image."""
    if generator is None:
        pieces = center_crop(images, size)
    else:
        pieces = flip(random_crop(images, size, generator), generator)
    return normalise(pieces, IMAGENET_MEAN, IMAGENET_STD)
