"""Random changes to whole batches, drawn from a given generator.

torchvision's transforms draw one set of numbers for a whole batch, from the global generator; here
every image has its own, and the generator's state alone decides them, so an epoch can be repeated.
Numbers are drawn on the CPU and used on the device of the images: all devices crop alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from experiments.settings import require

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

_GREY: Final = (0.299, 0.587, 0.114)  # weights of red, green and blue in a grey value (ITU-R 601)
_TRIES: Final = 10
_AREA, _ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)


Transform = Callable[[Tensor, "torch.Generator | None"], Tensor]
"""From bytes [B, channels, height, width] to what the backbone takes; without a generator, as for
validation and test, nothing is random."""


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(value − mean) / std per channel, of bytes read as 0 to 1 or of such numbers.

    One grey channel becomes as many equal ones as there are means before it is normalised.
    """
    values = images.float() / 255 if images.dtype == torch.uint8 else images
    m, s = _constants((tuple(mean), tuple(std)), values.device)
    normal: Tensor = (values - m) / s
    return normal


def center_crop(images: Tensor, size: int) -> Tensor:
    """The middle [size, size] of each image."""
    top, left = (images.shape[-2] - size) // 2, (images.shape[-1] - size) // 2
    return images[..., top : top + size, left : left + size]


def random_crop(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A [size, size] piece of each image, every place equally likely."""
    count, channels, height, width = images.shape
    require(size <= min(height, width), "crop", size, f"images are only {height}×{width}")
    tops = torch.randint(height - size + 1, (count,), generator=generator)
    lefts = torch.randint(width - size + 1, (count,), generator=generator)
    span = torch.arange(size)
    rows = (tops[:, None] + span).to(images.device)[:, None, :, None]
    columns = (lefts[:, None] + span).to(images.device)[:, None, None, :]
    image = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[image, channel, rows, columns]


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the images, at random, mirrored left to right."""
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


def colour_jitter(images: Tensor, intensity: float, generator: torch.Generator) -> Tensor:
    """Brightness, contrast and (of coloured images) saturation times 1 ± intensity.

    Args:
        images: [B, 1 or 3, height, width], 0 to 1.
        intensity: Each factor is uniform in [1 − intensity, 1 + intensity].
        generator: Source of three factors per image, and of one order of the three per batch.
    """
    low, high = max(0.0, 1 - intensity), 1 + intensity
    drawn = low + (high - low) * torch.rand(3, len(images), generator=generator)
    factors = drawn.to(images.device)[:, :, None, None, None]
    for change in torch.randperm(3, generator=generator).tolist():
        if change == 0:
            base: Tensor | float = 0.0
        elif change == 1:
            base = _grey(images).mean((-3, -2, -1), keepdim=True)
        elif images.shape[1] == 1:
            continue
        else:
            base = _grey(images)
        images = (base + factors[change] * (images - base)).clamp(0, 1)
    return images


def random_erase(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """A rectangle of some images replaced by standard normal noise, pixel by pixel.

    It is 2 % to a third of the image, and up to 3.3 times as high as wide or as wide as high, drawn
    uniformly in the logarithm (Zhong et al., 2020, *Random Erasing Data Augmentation*). Where none
    of ten drawn rectangles fits into the image, the image stays as it is.

    Args:
        images: [B, channels, height, width], normalised.
        probability: Of an image to be changed.
        generator: Source of the choice, the rectangles and (through a seed) the noise.
    """
    count, channels, height, width = images.shape
    chosen = torch.rand(count, generator=generator) < probability
    share = _AREA[0] + (_AREA[1] - _AREA[0]) * torch.rand(count, _TRIES, generator=generator)
    low, high = math.log(_ASPECT[0]), math.log(_ASPECT[1])
    ratio = (low + (high - low) * torch.rand(count, _TRIES, generator=generator)).exp()
    place = torch.rand(2, count, generator=generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    pixels = share * height * width
    heights, widths = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(1, keepdim=True)
    chosen &= fits.any(1)
    rows = chosen.nonzero()[:, 0]
    if len(rows) == 0:
        return images
    h, w = heights.gather(1, first)[rows, 0], widths.gather(1, first)[rows, 0]
    top = (place[0, rows] * (height - h + 1)).floor()
    left = (place[1, rows] * (width - w + 1)).floor()
    inside = _inside(top, h, height)[:, None, :, None] & _inside(left, w, width)[:, None, None, :]
    source = torch.Generator(images.device).manual_seed(seed)
    noise = torch.randn(
        len(rows), channels, height, width, generator=source, device=images.device
    ).to(images.dtype)
    rows = rows.to(images.device)
    changed = torch.where(inside.to(images.device), noise, images.index_select(0, rows))
    return images.index_copy(0, rows, changed)


@lru_cache(maxsize=16)
def _constants(values: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """[len(values), channels, 1, 1], brought to the device once and not for every batch."""
    return torch.tensor(values, device=device)[..., None, None]


def _inside(start: Tensor, length: Tensor, size: int) -> Tensor:
    """[R, size], whether each position lies in [start, start + length)."""
    position = torch.arange(size)
    return (position >= start[:, None]) & (position < (start + length)[:, None])


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(_GREY, device=images.device, dtype=images.dtype)
    return functional.conv2d(images, weights[None, :, None, None])
