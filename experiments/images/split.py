"""Parts of an image data set, as the trainer wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from experiments.benchmark import Batch
from experiments.errors import DataError, SettingsError
from experiments.files.ahead import ahead
from experiments.images.augment import Transform
from experiments.rows import Parts, places

_RESIDENT_SHARE: Final = 0.25
"""Images that fill at most this share of a GPU's free memory are kept there."""

_AHEAD: Final = 3
"""Batches that are made before they are asked for."""


class Images:
    """N images as bytes: on the device where they fit, else gathered from the host by a thread.

    Args:
        pixels: [N, channels, height, width] uint8 on the CPU, possibly mapped from a file.
        device: Where batches are wanted.

    Raises:
        DataError: ``pixels`` are of another kind or shape.
    """

    def __init__(self, pixels: Tensor, device: torch.device) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise DataError(
                f"images must be [N, channels, height, width] bytes, got {pixels.dtype} "
                f"{list(pixels.shape)}"
            )
        self.device = device
        self.resident = device.type == "cuda" and (
            pixels.numel() <= _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
        )
        self.pixels = pixels.to(device) if self.resident else pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, rows: Tensor) -> Tensor:
        """The images of ``rows`` ([B] int64 on the CPU), in that order, on the device."""
        there = self.pixels.device
        return self.pixels.index_select(0, rows.to(there, non_blocking=True)).to(self.device)

    def batches(self, chosen: Sequence[Tensor]) -> Iterator[Tensor]:
        """One batch for each entry of ``chosen``, in their order."""
        if self.resident or self.device.type == "cpu":
            # Nothing to overlap: the gather is done by the processor that would wait for it.
            yield from map(self.batch, chosen)
        else:
            for pixels in ahead(self._gathered, chosen, _AHEAD):
                yield pixels.to(self.device, non_blocking=True)

    def _gathered(self, rows: Tensor) -> Tensor:
        batch = self.pixels.index_select(0, rows)
        return batch.pin_memory() if self.device.type == "cuda" else batch


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
        return len(_joined(places(len(self), batch_size, None)))

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All images once, on the device."""
        chosen = _joined(places(len(self), batch_size, generator))
        images = self._images.batches([self._rows[batch] for batch in chosen])
        for batch, pixels in zip(chosen, images, strict=True):
            there = batch.to(pixels.device)
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


def _joined(batches: Sequence[Tensor]) -> list[Tensor]:
    """A last one of one image, which batch normalisation cannot take, joins the one before."""
    parts = list(batches)
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
