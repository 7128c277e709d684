"""CIFAR as a multi-task benchmark: is it this class, or another? One binary task per class."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Figures, Task, Values
from experiments.cifar.sources import SIZE, LabelledImages, Source, class_names, digest, load, look
from experiments.errors import DataError
from experiments.files.cache import default_folder
from experiments.images.augment import normalise
from experiments.images.files import some
from experiments.images.split import parts_of, subset
from experiments.rows import Parts, log_odds
from experiments.scores import BinaryAccuracy, Largest, mixed
from experiments.scores.calibration import Calibration
from experiments.settings import Settings, require, require_numbers
from models.cifar import CifarNetwork

HEAD = "classes"
ACCURACY = "accuracy"

_SUPER_CLASSES = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
    *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
    *("large_man-made_outdoor_things", "large_natural_outdoor_scenes"),
    *("large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people"),
    *("reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2"),
)
_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class Cifar(Benchmark):
    """CIFAR-100, a task for each super-class; the defaults are the paper's CIFAR-MTL.

    Every class (of CIFAR-100: every super-class) is a binary task, "this class or another". The
    paper reports, and selects by, the accuracy of the class with the largest logit.

    Attributes:
        source: ``"cifar100"``, ``"cifar10"`` or ``"folder"``.
        data: Where the images are, or are downloaded to; None for the default place.
        training: Training images; None for all that validation leaves.
        validation: Images taken from the official training images; None for 5,000, or a tenth of
            the training images where there are fewer than 50,000.
        split_seed: Which images are in which part.
        width: Channels of the network.
        size: Height and width that a folder's images are resized to; CIFAR's own are 32×32.
    """

    name: ClassVar[str] = "cifar-mtl"
    title: ClassVar[str] = "CIFAR-MTL"
    metric: ClassVar[str] = "accuracy"
    single_task_source: ClassVar[str] = "none: the paper gives no single-task row for CIFAR-MTL"
    score_name: ClassVar[str] = "error"
    smallest_batch: ClassVar[int] = 2
    default_settings: ClassVar[Settings] = Settings(
        epochs=50,
        batch_size=128,
        learning_rate=1e-3,
        schedule="steps",
        weight_decay=1e-4,
        head_bias=True,
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The paper prints no prior variance; a narrow one fails on few images (docs/images.md).
        "bayesagg": {"pretrain": 3, "power": 5e-4, "prior_variance": 1.0}
    }
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"power": (5e-2, 5e-3, 5e-4), "pretrain": (1, 3)}

    packages: ClassVar[Sequence[str]] = ("torchvision",)
    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = frozenset({"size"})

    source: Source = "cifar100"
    data: str | None = None
    training: int | None = None
    validation: int | None = None
    split_seed: int = 0
    width: int = 160
    size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.source != "folder" or self.data is not None,
            "data",
            self.data,
            "the source folder needs one with train/<class>/*.jpg and test/<class>/*.jpg",
        )
        require_numbers(self, "width", least=1)
        require(self.size >= 27, "size", self.size, "three poolings by 3 need at least 27 pixels")
        require(
            self.source == "folder" or self.size == SIZE,
            "size",
            self.size,
            f"the images of {self.source} are {SIZE}×{SIZE}; a folder's take any size",
        )

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; for a folder, those of its sub-folders.

        Raises:
            DataError: It is not such a folder.
        """
        if self.source == "folder":
            return class_names(Path(str(self.data)))
        return _SUPER_CLASSES if self.source == "cifar100" else _CIFAR10

    @property
    def tasks(self) -> Sequence[Task]:
        """One task per class."""
        return tuple(
            Task(name, name.replace("_", " "), "%", None, higher_is_better=True)
            for name in self.classes
        )

    def look(self) -> str:
        """Whether its files are there."""
        return look(self.source, None if self.data is None else Path(self.data), default_folder())

    def load(self, device: torch.device) -> Data:
        """Read the set (downloaded or decoded the first time) and split it."""
        cache = default_folder()
        place = None if self.data is None else Path(self.data)
        found = load(self.source, place, cache, size=self.size)
        if found.classes != self.classes:
            raise DataError(
                f"{self.source} has the classes {some(found.classes)}, not the known ones "
                f"({some(self.classes)}): delete it, and it will be fetched again"
            )
        parts = split(found, self.split_seed, self.training, self.validation)
        labels = nn.functional.one_hot(found.labels, len(found.classes)).float()
        mean, std = channel_statistics(found.pixels, parts.train)

        def standardise(images: Tensor, generator: torch.Generator | None) -> Tensor:
            return normalise(images, mean, std)  # the paper augments these images by nothing

        return Data(
            *parts_of(found.pixels, {HEAD: labels}, parts, device, standardise),
            constants={HEAD: log_odds(labels[parts.train])},
            meter=mixed(
                {HEAD: BinaryAccuracy},
                {ACCURACY: (HEAD, Largest)},
                {HEAD: partial(Calibration, found.classes, "binary", mean=True)},
            ),
            about={
                "source": self.source,
                "classes": list(found.classes),
                **({"images": self._digest} if self.source == "folder" else {}),
                "channel_mean": mean,
                "channel_std": std,
            },
            left_out={"files that are no images": found.others},
        )

    def backbone(self) -> nn.Module:
        """The paper's three convolutions."""
        return CifarNetwork(self.width, image_size=self.size)

    def heads(self, bias: bool) -> dict[str, Head]:
        """One Bernoulli head with a task per class."""
        # Three poolings by 3 leave one position of 32×32 pixels, with ``width`` features.
        features = self.width * (self.size // 27) ** 2
        return {HEAD: heads.Bernoulli(features, len(self.classes), bias=bias)}

    def score(self, values: Values, figures: Figures) -> float:
        """Per cent of images whose largest logit is wrong: lower is better."""
        accuracy = figures[ACCURACY]
        return float("nan") if accuracy is None else 100.0 - accuracy

    def at(self, data: str) -> Cifar:
        """A folder with ``train/`` in it, or one in which torchvision keeps its data sets."""
        folder = Path(data, "train").is_dir()
        return dataclasses.replace(self, data=data, source="folder" if folder else self.source)

    def identity(self) -> dict[str, Any]:
        """All but where the images are; of a folder also which images it holds."""
        options = super().identity()
        if self.source == "folder":
            options["images"] = self._digest
        return options

    @cached_property
    def _digest(self) -> str:
        return digest(Path(str(self.data)))


def split(found: LabelledImages, seed: int, training: int | None, validation: int | None) -> Parts:
    """Official test images, and the official training images in two at random.

    Raises:
        SettingsError: More images are asked for than there are.
    """
    total = found.training
    held = min(5000, total // 10) if validation is None else validation
    require(1 <= held < total, "validation", held, f"give 1 to {total - 1:,}")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return Parts(
        train=subset(order[held:], training, "training"),
        validation=order[:held],
        test=torch.arange(total, len(found.pixels)),
    )


def channel_statistics(pixels: Tensor, rows: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over the training images, on the scale 0 to 1."""
    count = 0
    total, squares = torch.zeros(2, 3, dtype=torch.float64)
    for chunk in rows.split(2000):
        values = pixels[chunk].double() / 255
        count += values.numel() // 3
        total += values.sum((0, 2, 3))
        squares += values.square().sum((0, 2, 3))
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=1e-6).sqrt()
    return mean.tolist(), std.tolist()
