"""The small convolutional network of the CIFAR multi-task benchmark.

Rosenbaum et al. (2018), *Routing Networks*, use it for the twenty super-classes of CIFAR-100.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.errors import NetworkError

_POOL, _BLOCKS = 3, 3


class CifarNetwork(nn.Module):
    """Three times [3×3 convolution, ELU, 3×3 max-pooling], then batch normalisation.

    Convolutions pad by reflection, so they keep height and width; each pooling divides both by
    three, rounding down. A 32×32 image becomes 10×10, 3×3 and 1×1: ``width`` features.

    Args:
        width: Channels of every convolution.
        image_size: Height and width of the images.

    Raises:
        NetworkError: A number is not positive, or the images are too small for so many poolings.
    """

    def __init__(self, width: int = 160, *, image_size: int = 32) -> None:
        super().__init__()
        if width < 1:
            raise NetworkError(f"width = {width} cannot work: give at least 1")
        if image_size < _POOL**_BLOCKS:
            raise NetworkError(
                f"image_size = {image_size} is too small for {_BLOCKS} poolings by {_POOL}: give "
                f"at least {_POOL**_BLOCKS}"
            )
        layers: list[nn.Module] = []
        for block in range(_BLOCKS):
            channels = 3 if block == 0 else width
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, padding_mode="reflect"),
                # Before the activation, nine times cheaper: ELU is monotone, so they commute.
                nn.MaxPool2d(_POOL),
                nn.ELU(),
            ]
        self.blocks = nn.Sequential(*layers)
        self.out_features = width * (image_size // _POOL**_BLOCKS) ** 2  #: d
        self.norm = nn.BatchNorm1d(self.out_features)
        self.image_shape = (3, image_size, image_size)
        # Channels last is the faster layout for these convolutions, on CPUs and on tensor cores.
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, out_features] of images [B, 3, height, width].

        Raises:
            NetworkError: The images have another shape.
        """
        if tuple(images.shape[1:]) != self.image_shape or images.ndim != 4:
            raise NetworkError(
                f"images must be [B, {', '.join(map(str, self.image_shape))}], got "
                f"{list(images.shape)}"
            )
        images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.norm(self.blocks(images).flatten(1))
        return features
