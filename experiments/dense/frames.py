"""Images with what is known of every pixel, and random crops and mirror images of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from experiments.settings import require

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

    def changed(self, change: Callable[[Tensor], Tensor]) -> Frames:
        """The same with every part changed alike."""
        normal = None if self.normal is None else change(self.normal)
        return Frames(change(self.image), change(self.label), change(self.depth), normal)

    def rows(self, chosen: Tensor) -> Frames:
        """Some of the images, [R] int64."""
        return self.changed(lambda part: part[chosen])

    def to(self, device: torch.device) -> Frames:
        """The same on a device."""
        return self.changed(lambda part: part.to(device, non_blocking=True))

    def shrunk(self, times: int) -> Frames:
        """So many times smaller in height and width: colours averaged, targets of a pixel each.

        Raises:
            SettingsError: Less than two pixels would be left.
        """
        if times == 1:
            return self
        most = min(self.label.shape[-2:]) // 2  # augmentation crops what is left
        require(times <= most, "shrink", times, f"these images take at most {most}")
        image = functional.avg_pool2d(self.image, times)
        height, width = image.shape[-2:]
        middle = slice(times // 2, None, times)
        found = self.changed(lambda part: part[..., middle, middle][..., :height, :width])
        return found._replace(image=image)

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


SCALES: Final = (1.0, 1.2, 1.5)


def augmented(frames: Frames, generator: torch.Generator, *, inverse_depth: bool) -> Frames:
    """Each image cropped and, or not, mirrored.

    Args:
        frames: B images.
        generator: Decides, on the CPU.
        inverse_depth: Whether depths are inverse ones, which grow as things come nearer.
    """
    count, height, width = frames.label.shape
    chosen = torch.randint(len(SCALES), (count,), generator=generator)
    place = torch.rand(count, 2, generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    parts = []
    for row in range(count):
        one = frames.rows(torch.tensor([row], device=frames.label.device))
        scale = SCALES[int(chosen[row])]
        if scale > 1:
            h, w = int(height / scale), int(width / scale)
            top = int(place[row, 0] * (height - h + 1))
            left = int(place[row, 1] * (width - w + 1))
            one = scaled_crop(one, scale, top, left, inverse_depth=inverse_depth)
        parts.append(flipped(one) if mirrored[row] else one)
    return Frames.cat(parts)


def scaled_crop(
    frames: Frames, scale: float, top: int, left: int, *, inverse_depth: bool
) -> Frames:
    """A piece of height / scale times width / scale, resized to the whole's size.

    What fills more of the image seems nearer: depths are divided by the scale. Normals are left as
    they are, as published.
    """
    size = frames.label.shape[-2:]
    h, w = (int(length / scale) for length in size)

    def piece(values: Tensor, mode: str) -> Tensor:
        cut = values[..., top : top + h, left : left + w]
        whole = cut if cut.ndim == 4 else cut[:, None]
        aligned = None if mode == "nearest" else True
        resized = functional.interpolate(whole.float(), size, mode=mode, align_corners=aligned)
        return resized if cut.ndim == 4 else resized[:, 0]

    depth = piece(frames.depth, "nearest")
    return Frames(
        piece(frames.image, "bilinear"),
        piece(frames.label, "nearest").long(),
        depth * scale if inverse_depth else depth / scale,
        None if frames.normal is None else piece(frames.normal, "nearest"),
    )


def flipped(frames: Frames) -> Frames:
    """Mirrored left to right; the x of the normals changes sign."""
    found = frames.changed(lambda part: part.flip(-1))
    if found.normal is None:
        return found
    normal = torch.cat([-found.normal[:, :1], found.normal[:, 1:]], 1)
    return found._replace(normal=normal)
