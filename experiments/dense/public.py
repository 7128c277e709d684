"""NYUv2 and Cityscapes, preprocessed for multi-task learning by Liu et al. (2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.benchmark import Figures, Values
from experiments.dense import release
from experiments.dense.benchmark import Dense
from experiments.dense.split import Part
from experiments.settings import require, require_numbers


@dataclass(frozen=True)
class Released(Dense):
    """A preprocessed public release.

    Attributes:
        data: Folder with the preprocessed train/ and val/.
        validation: Images taken from train/; None for a tenth. val/ is the test split.
        split_seed: Which images are in which part.
        shrink: Makes images so many times smaller in height and width, to try it on a CPU.
    """

    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = Dense.later | {"shrink"}

    data: str | None = None
    validation: int | None = None
    split_seed: int = 0
    shrink: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "shrink", least=1)

    def parts(self) -> tuple[Part, Part, Part]:
        """Files of the release."""
        return release.parts(
            self.data,
            self.number_of_classes,
            normals="normal" in self.every_head,
            validation=self.validation,
            seed=self.split_seed,
            shrink=self.shrink,
        )


@dataclass(frozen=True)
class NyuV2(Released):
    """NYUv2: 13 classes, depth and normals of the pixels of rooms.

    Silberman et al. (2012), *Indoor Segmentation and Support Inference from RGBD Images*, as
    preprocessed for multi-task learning by Liu et al. (2019).
    """

    name: ClassVar[str] = "nyuv2"
    title: ClassVar[str] = "NYUv2"
    single_task_source: ClassVar[str] = (
        "the row that published code compares with (CAGrad, Liu et al., 2021, and later ones)"
    )

    @property
    def number_of_classes(self) -> int:
        """Thirteen."""
        return 13

    @property
    def published(self) -> Sequence[float]:
        """Of three networks, one for each head."""
        return (38.30, 63.76, 0.6754, 0.2780, 25.01, 19.21, 30.14, 57.20, 69.15)


@dataclass(frozen=True)
class Cityscapes(Released):
    """Cityscapes: classes and inverse depth of the pixels of streets.

    Cordts et al. (2016), *The Cityscapes Dataset for Semantic Urban Scene Understanding*, as
    preprocessed for multi-task learning by Liu et al. (2019).

    Attributes:
        classes: How many the labels tell apart; 7, or 19 in releases that have them.
    """

    name: ClassVar[str] = "cityscapes"
    title: ClassVar[str] = "Cityscapes"
    single_task_source: ClassVar[str] = (
        "7 classes: the row that published code compares with (CAGrad, Liu et al., 2021, and later "
        "ones)"
    )
    depth_unit: ClassVar[str] = ""
    inverse_depth: ClassVar[bool] = True
    every_head: ClassVar[Sequence[str]] = ("segmentation", "depth")
    metric: ClassVar[str] = "segmentation and inverse depth of pixels"

    data: str | None = None
    classes: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.classes >= 2, "classes", self.classes, "give 7, or 19")

    @property
    def number_of_classes(self) -> int:
        """As the option says."""
        return self.classes

    @property
    def published(self) -> Sequence[float] | None:
        """Published for seven classes alone."""
        return (74.01, 93.16, 0.0125, 27.77) if self.classes == 7 else None

    def score(self, values: Values, figures: Figures) -> float:
        """Δm; without published metrics what mIoU lacks of 100 %, or of depth alone its error."""
        if self.published is not None:
            return super().score(values, figures)
        found = {task.name: v for task, v in zip(self.tasks, values, strict=True) if v is not None}
        if "miou" in found:
            return 100.0 - found["miou"]
        return 100.0 * found.get("depth_absolute", float("nan"))
