"""Cityscapes: streets seen from a car, 7 or 19 classes and inverse depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.benchmark import Figures, Values
from experiments.dense.benchmark import Dense
from experiments.dense.release import parts
from experiments.dense.split import Part
from experiments.settings import require, require_numbers


@dataclass(frozen=True)
class Cityscapes(Dense):
    """Cityscapes: classes and inverse depth of the pixels of streets.

    Cordts et al. (2016), *The Cityscapes Dataset for Semantic Urban Scene Understanding*, as
    preprocessed for multi-task learning by Liu et al. (2019).

    Attributes:
        data: Folder with the preprocessed train/ and val/.
        classes: How many the labels tell apart; 7, or 19 in releases that have them.
        validation: Images taken from train/; None for a tenth. val/ is the test split.
        split_seed: Which images are in which part.
        shrink: Makes images so many times smaller in height and width, to try it on a CPU.
    """

    name: ClassVar[str] = "cityscapes"
    title: ClassVar[str] = "Cityscapes"
    single_task_source: ClassVar[str] = (
        "7 classes: the row that published code compares with (CAGrad, Liu et al., 2021, and later "
        "ones)"
    )
    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = Dense.later | {"shrink"}
    depth_unit: ClassVar[str] = ""
    inverse_depth: ClassVar[bool] = True
    every_head: ClassVar[Sequence[str]] = ("segmentation", "depth")

    data: str | None = None
    classes: int = 7
    validation: int | None = None
    split_seed: int = 0
    shrink: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.classes >= 2, "classes", self.classes, "give 7, or 19")
        require_numbers(self, "shrink", least=1)

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

    def parts(self) -> tuple[Part, Part, Part]:
        """Files of the release."""
        return parts(
            self.data,
            self.number_of_classes,
            normals=False,
            validation=self.validation,
            seed=self.split_seed,
            shrink=self.shrink,
        )
