"""SegNet: an encoder and decoder of convolutions, features for every pixel.

Badrinarayanan, Kendall, Cipolla (2017), *SegNet: A Deep Convolutional Encoder-Decoder Architecture
for Image Segmentation*, https://arxiv.org/abs/1511.00561. The heads are its last layer, the
classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from models.errors import NetworkError

_GROWTH: Final = (1, 2, 4, 8, 8)
_CONVOLUTIONS: Final = (2, 2, 3, 3, 3)


class Encoded(NamedTuple):
    """What an encoder hands to decoders.

    Attributes:
        features: [B, channels, h, w], of the coarsest level.
        places: Of each level from fine to coarse, which pixel of every pooled block was largest.
        sizes: Height and width of each level before it was pooled.
    """

    features: Tensor
    places: Sequence[Tensor]
    sizes: Sequence[torch.Size]


class SegNetEncoder(nn.Module):
    """Levels of [convolutions, 2×2 max-pooling that remembers its places].

    Args:
        width: Channels of the first level; the next have 2, 4, 8 and 8 times as many.
        levels: 1 to 5, how often height and width are halved.

    Raises:
        NetworkError: A number is out of range.
    """

    def __init__(self, width: int = 64, levels: int = 5) -> None:
        super().__init__()
        _check(width, levels)
        channels = [3, *_channels(width, levels)]
        self.levels = nn.ModuleList(
            _block(before, after, count)
            for before, after, count in zip(channels, channels[1:], _CONVOLUTIONS, strict=False)
        )
        self.least = 2**levels
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Encoded:
        """Of images [B, 3, H, W].

        Raises:
            NetworkError: They are too small for so many poolings.
        """
        if images.ndim != 4 or min(images.shape[-2:]) < self.least:
            raise NetworkError(
                f"images must be [B, 3, H, W] of at least {self.least} pixels a side, got "
                f"{list(images.shape)}: give larger ones, or fewer levels"
            )
        features = images.contiguous(memory_format=torch.channels_last)
        places, sizes = [], []
        for level in self.levels:
            features = level(features)
            sizes.append(features.shape[-2:])
            features, place = nn.functional.max_pool2d(features, 2, return_indices=True)
            places.append(place)
        return Encoded(features, places, sizes)


class SegNetDecoder(nn.Module):
    """The way back: values return to the places that they were pooled from.

    Args:
        width: Of the encoder; also the number of features d of a pixel.
        levels: Of the encoder.

    Raises:
        NetworkError: A number is out of range.
    """

    def __init__(self, width: int = 64, levels: int = 5) -> None:
        super().__init__()
        _check(width, levels)
        channels = [width, *_channels(width, levels)]
        self.levels = nn.ModuleList(
            _block(after, before, count)
            for before, after, count in zip(channels, channels[1:], _CONVOLUTIONS, strict=False)
        )
        self.unpool = nn.MaxUnpool2d(2)
        self.out_features = width  #: d
        self.to(memory_format=torch.channels_last)

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, width, H, W]."""
        features = encoded.features
        for level, place, size in zip(
            reversed(self.levels), reversed(encoded.places), reversed(encoded.sizes), strict=True
        ):
            features = self.unpool(features, place, output_size=list(size))
            features = level(features)
        return features


def _check(width: int, levels: int) -> None:
    if width < 1:
        raise NetworkError(f"width = {width} cannot work: give at least 1")
    if not 1 <= levels <= len(_GROWTH):
        raise NetworkError(f"levels = {levels} cannot work: give 1 to {len(_GROWTH)}")


def _channels(width: int, levels: int) -> list[int]:
    return [width * growth for growth in _GROWTH[:levels]]


def _block(before: int, after: int, convolutions: int) -> nn.Sequential:
    """So many 3×3 convolutions with batch normalisation and ReLU, the last of which narrows."""
    layers: list[nn.Module] = []
    for index in range(convolutions):
        out = after if index + 1 == convolutions or before < after else before
        layers += [
            nn.Conv2d(before, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        ]
        before = out
    return nn.Sequential(*layers)
