"""NYUv2: rooms seen by a depth camera, 13 classes, depth and normals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.dense.benchmark import Dense
from experiments.dense.release import parts
from experiments.dense.split import Part
from experiments.settings import require_numbers


@dataclass(frozen=True)
class NyuV2(Dense):
    """NYUv2: 13 classes, depth and normals of the pixels of rooms.

    Silberman et al. (2012), *Indoor Segmentation and Support Inference from RGBD Images*, as
    preprocessed for multi-task learning by Liu et al. (2019).

    Attributes:
        data: Folder with the preprocessed train/ and val/.
        validation: Images taken from train/; None for a tenth. val/ is the test split.
        split_seed: Which images are in which part.
        shrink: Makes images so many times smaller in height and width, to try it on a CPU.
    """

    name: ClassVar[str] = "nyuv2"
    title: ClassVar[str] = "NYUv2"
    single_task_source: ClassVar[str] = (
        "the row that published code compares with (CAGrad, Liu et al., 2021, and later ones)"
    )
    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = Dense.later | {"shrink"}

    data: str | None = None
    validation: int | None = None
    split_seed: int = 0
    shrink: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "shrink", least=1)

    @property
    def number_of_classes(self) -> int:
        """Thirteen."""
        return 13

    @property
    def published(self) -> Sequence[float]:
        """Of three networks, one for each head."""
        return (38.30, 63.76, 0.6754, 0.2780, 25.01, 19.21, 30.14, 57.20, 69.15)

    def parts(self) -> tuple[Part, Part, Part]:
        """Files of the release."""
        return parts(
            self.data,
            self.number_of_classes,
            normals=True,
            validation=self.validation,
            seed=self.split_seed,
            shrink=self.shrink,
        )
