"""Images with what is known of every pixel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -1
"""Label of a pixel that nobody has labelled."""


class Frames(NamedTuple):
    """B images of height H and width W and their pixels' targets, as the public releases have them.

    Attributes:
        image: [B, 3, H, W], RGB, 0 to 1.
        label: [B, H, W] int64, a class, or −1 where there is none.
        depth: [B, H, W], metres, or inverse depth; 0 where it was not observed.
        normal: [B, 3, H, W], unit vectors (x to the right), 0 where not observed; None where the
            data have no normals.
    """

    image: Tensor
    label: Tensor
    depth: Tensor
    normal: Tensor | None = None

    def rows(self, chosen: Tensor) -> Frames:
        """Some of the images, [R] int64."""
        kept = (None if part is None else part[chosen] for part in self)
        return Frames(*kept)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Frames:
        """The same on a device."""
        moved = (None if part is None else part.to(device, non_blocking=True) for part in self)
        return Frames(*moved)  # type: ignore[arg-type]

    def shrunk(self, times: int) -> Frames:
        """So many times smaller in height and width: colours averaged, targets of a pixel each."""
        if times == 1:
            return self
        image = functional.avg_pool2d(self.image, times)
        height, width = image.shape[-2:]
        middle = slice(times // 2, None, times)
        targets = (
            None if part is None else part[..., middle, middle][..., :height, :width]
            for part in self[1:]
        )
        return Frames(image, *targets)  # type: ignore[arg-type]

    @staticmethod
    def cat(parts: list[Frames]) -> Frames:
        """Several in a row, of one size and kind."""
        whole = (None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True))
        return Frames(*whole)  # type: ignore[arg-type]


def pixel_rows(maps: Tensor) -> Tensor:
    """[B, n, H, W] or [B, H, W] as a row for each pixel, [B · H · W, n or 1], images in order."""
    columns = maps if maps.ndim == 4 else maps[:, None]
    return columns.movedim(1, -1).flatten(0, 2)


def seen_label(frames: Frames) -> Tensor:
    """[B, H, W] bool, which pixels have a label."""
    return frames.label != IGNORED


def seen_depth(frames: Frames) -> Tensor:
    """[B, H, W] bool, which pixels have a depth."""
    return frames.depth > 0


def seen_normal(frames: Frames) -> Tensor:
    """[B, H, W] bool, which pixels have a normal; none where the data have no normals."""
    if frames.normal is None:
        return torch.zeros_like(frames.label, dtype=torch.bool)
    return (frames.normal != 0).any(1)
