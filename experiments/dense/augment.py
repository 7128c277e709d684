"""Random crops and mirror images, with the targets that belong to them.

As published with MTAN (Liu et al., 2019, https://arxiv.org/abs/1803.10704): a crop of scale 1, 1.2
or 1.5, resized back, and a horizontal flip. Targets take the nearest pixel's values, so that what
was not observed stays so.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from experiments.dense.frames import Frames

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
    image, label, depth, normal = (None if part is None else part.flip(-1) for part in frames)
    assert image is not None
    assert label is not None
    assert depth is not None
    if normal is not None:
        normal = torch.cat([-normal[:, :1], normal[:, 1:]], 1)
    return Frames(image, label, depth, normal)
