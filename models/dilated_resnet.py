"""A dilated residual network with atrous spatial pyramid pooling: features for every pixel.

Chen, Papandreou, Schroff, Adam (2017), *Rethinking Atrous Convolution for Semantic Image
Segmentation* (DeepLab v3), https://arxiv.org/abs/1706.05587. The heads are its classifier: a 1 × 1
convolution and bilinear interpolation can be exchanged, so that features are what is enlarged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from models.errors import NetworkError
from models.resnet import trunk

DEPTHS: Final = (50, 101)
"""Those with bottleneck blocks, which torchvision can dilate."""
_CHANNELS: Final = 2048
_RATES: Final = (12, 24, 36)


class Encoded(NamedTuple):
    """What the encoder hands to decoders.

    Attributes:
        features: [B, 2048, H / 8, W / 8].
        size: Height and width of the images.
    """

    features: Tensor
    size: torch.Size


class DilatedResNetEncoder(nn.Module):
    """torchvision's residual network, whose last two stages dilate instead of striding.

    Args:
        depth: 50 or 101.
        weights: Where to start from, as for :class:`models.resnet.ResNetFeatures`.

    Raises:
        NetworkError: There is no such depth.
        WeightsError: The weights cannot be had, or do not fit.
        MissingPackageError: torchvision is not installed.
    """

    def __init__(self, depth: int = 50, weights: str | Path | None = None) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise NetworkError(
                f"depth = {depth} cannot be dilated: give one of {', '.join(map(str, DEPTHS))}"
            )
        whole = trunk(depth, weights, replace_stride_with_dilation=[False, True, True])
        names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
        self.trunk = nn.Sequential(*(getattr(whole, name) for name in names))
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Encoded:
        """Of images [B, 3, H, W]."""
        features = self.trunk(images.contiguous(memory_format=torch.channels_last))
        return Encoded(features, images.shape[-2:])


class AsppDecoder(nn.Module):
    """Convolutions of several dilations and the mean of the image, side by side, then one of 3 × 3.

    The mean, one value for each channel and image, is not batch-normalised, so that batches of one
    image train.

    Args:
        width: Channels, also the number of features d of a pixel.

    Raises:
        NetworkError: There are none.
    """

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        if width < 1:
            raise NetworkError(f"width = {width} cannot work: give at least 1")
        self.near = _convolution(_CHANNELS, width, 1)
        self.far = nn.ModuleList(_convolution(_CHANNELS, width, 3, rate) for rate in _RATES)
        self.everywhere = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(_CHANNELS, width, 1), nn.ReLU(inplace=True)
        )
        self.last = nn.Sequential(
            _convolution((2 + len(_RATES)) * width, width, 1), _convolution(width, width, 3)
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, width, H, W]."""
        seen = [self.near(encoded.features), *(one(encoded.features) for one in self.far)]
        mean = self.everywhere(encoded.features)
        found = self.last(torch.cat([*seen, mean.expand_as(seen[0])], 1))
        return nn.functional.interpolate(
            found, size=encoded.size, mode="bilinear", align_corners=False
        )


def _convolution(before: int, after: int, size: int, rate: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, padding=rate * (size // 2), dilation=rate, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )
