"""Batches of decoded images, brought to the device ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.files.ahead import ahead

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
