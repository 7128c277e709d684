"""Rendered rooms: every label, depth and normal is exact, and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from experiments.dense.benchmark import Dense
from experiments.dense.release import write
from experiments.dense.rooms import CLASSES, Camera, draw, render, with_gaps
from experiments.dense.split import InMemory, Part
from experiments.errors import OutputError
from experiments.settings import Settings, require, require_numbers

LAYOUTS: Final = ("nyuv2", "cityscapes")


@dataclass(frozen=True)
class Scenes(Dense):
    """Rendered rooms: classes, depth and normals of pixels, without any download.

    Rooms with balls, boxes and boards in random colours and light. Five classes, depth and normals
    share a network; which pixels a depth camera or a person would have left out is left out.

    Attributes:
        images: Training images; a quarter as many more are rendered for validation, and for test.
        height: Of the images in pixels.
        image_width: Of the images in pixels.
        gaps: Leave some pixels unobserved.
        split_seed: Which rooms are drawn.
    """

    name: ClassVar[str] = "scenes"
    title: ClassVar[str] = "Rendered scenes"
    single_task_source: ClassVar[str] = (
        "own networks, one for each head (python -m experiments scenes --method ls --task HEAD), "
        "seed 0 at the best epoch on validation"
    )
    default_settings: ClassVar[Settings] = Settings(
        epochs=20, batch_size=4, learning_rate=3e-3, schedule="steps", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {**Dense.method_options["bayesagg"], "pretrain": 3}
    }

    images: int = 160
    height: int = 48
    image_width: int = 64
    gaps: bool = True
    split_seed: int = 0
    width: int = 16
    levels: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "images", least=4)
        for name in ("height", "image_width") if self.network == "segnet" else ():
            length, least = getattr(self, name), 2**self.levels
            require(length >= least, name, length, f"{self.levels} levels need at least {least}")

    @property
    def number_of_classes(self) -> int:
        """Five."""
        return len(CLASSES)

    @property
    def class_names(self) -> Sequence[str]:
        """Wall, floor, ball, box, board."""
        return CLASSES

    @property
    def published(self) -> Sequence[float]:
        """Of own networks, at these options' defaults."""
        return (53.98, 82.69, 0.6632, 0.1712, 20.59, 11.29, 49.89, 67.08, 74.77)

    def look(self) -> str:
        """Nothing is read."""
        return "rendered when it runs"

    def parts(self) -> tuple[Part, Part, Part]:
        """Render them; each has rooms of its own."""
        camera = Camera(self.height, self.image_width)
        few = self.images // 4

        def part(place: int, count: int) -> Part:
            rooms = draw(count, 3 * self.split_seed + place)
            frames = render(rooms, camera)
            return InMemory(with_gaps(frames, rooms) if self.gaps else frames), torch.arange(count)

        return part(0, self.images), part(1, few), part(2, few)


def as_files(
    folder: Path, layout: str, counts: Mapping[str, int], camera: Camera, seed: int
) -> None:
    """Write rooms, with gaps, in the layout of a release.

    Raises:
        OutputError: The folder holds images, which these would mix with, or cannot be written.
    """
    if held := [folder / part for part in counts if (folder / part).exists()]:
        raise OutputError(f"{held[0]} exists already: remove it, or choose another folder")
    for place, (part, count) in enumerate(counts.items()):
        rooms = draw(count, 3 * seed + place)
        frames = with_gaps(render(rooms, camera), rooms)
        if layout == "cityscapes":
            inverse = torch.where(frames.depth > 0, 1 / frames.depth, 0.0)
            frames = frames._replace(depth=inverse, normal=None)
        write(frames, folder, part)
