"""Parts of an image data set, as the trainer wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from experiments.benchmark import Batch
from experiments.errors import SettingsError
from experiments.images.augment import Transform
from experiments.images.store import Images
from experiments.rows import Parts


class ImageSplit:
    """Rows of a set of images with their targets.

    With a generator, the order is drawn first and then, batch by batch, the augmentation; without
    one, the order is that of the rows and nothing is random.

    Args:
        images: All images of the set.
        targets: ``{head: [N, ...]}`` for all images.
        rows: The part's rows.
        transform: From bytes to the backbone's input.
    """

    def __init__(
        self, images: Images, targets: Mapping[str, Tensor], rows: Tensor, transform: Transform
    ) -> None:
        self._images, self._rows, self._transform = images, rows, transform
        self.targets = {name: values[rows].to(images.device) for name, values in targets.items()}

    def __len__(self) -> int:
        return len(self._rows)

    def steps(self, batch_size: int) -> int:
        """Number of batches, the last one possibly smaller."""
        return len(_cut(torch.arange(len(self)), batch_size))

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All images once, on the device."""
        order = torch.arange(len(self))
        if generator is not None:
            order = torch.randperm(len(self), generator=generator)
        chosen = _cut(order, batch_size)
        images = self._images.batches([self._rows[places] for places in chosen])
        for places, pixels in zip(chosen, images, strict=True):
            there = places.to(pixels.device)
            targets = {k: v.index_select(0, there) for k, v in self.targets.items()}
            yield Batch(self._transform(pixels, generator), targets)


def parts_of(
    pixels: Tensor,
    targets: Mapping[str, Tensor],
    parts: Parts,
    device: torch.device,
    transform: Transform,
) -> tuple[ImageSplit, ImageSplit, ImageSplit]:
    """Training, validation and test images.

    Args:
        pixels: [N, channels, height, width] bytes of the whole set.
        targets: ``{head: [N, ...]}`` likewise.
        parts: Which rows are in which.
        device: Where batches are wanted.
        transform: From bytes to the backbone's input.
    """
    images = Images(pixels, device)
    train, validation, test = (
        ImageSplit(images, targets, rows, transform)
        for rows in (parts.train, parts.validation, parts.test)
    )
    return train, validation, test


def _cut(order: Tensor, size: int) -> list[Tensor]:
    """Batches; a last one of one image, which batch normalisation cannot take, joins another."""
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def subset(rows: Tensor, count: int | None, name: str) -> Tensor:
    """The first ``count`` rows, or all.

    Raises:
        SettingsError: There are not so many, or fewer than one is wanted.
    """
    if count is None:
        return rows
    if not 1 <= count <= len(rows):
        raise SettingsError(f"{name} = {count} cannot work: give 1 to {len(rows):,}")
    return rows[:count]
