"""An encoder of images with one decoder, or with one for each task: features of every pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class EncoderDecoder(nn.Module):
    """Features [B, d, H, W] of images [B, channels, H, W].

    Args:
        encoder: Gives a named tuple with ``features`` from images.
        decoder: Takes that.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, images: Tensor) -> Tensor:
        """Features of every pixel."""
        features: Tensor = self.decoder(self.encoder(images))
        return features


class Branches(nn.Module):
    """One encoder, and a decoder for each task: ``{name: [B, d, H, W]}``.

    Args:
        encoder: Gives a named tuple with ``features`` from images.
        decoders: ``{name of the task: decoder}``.
    """

    def __init__(self, encoder: nn.Module, decoders: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoders = nn.ModuleDict(decoders)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Features of every pixel, for each task its own."""
        shared, decode = self.halves(images)
        return decode(shared)

    def halves(self, images: Tensor) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
        """The encoder's features, and what the decoders make of such."""
        encoded: Any = self.encoder(images)

        def decode(features: Tensor) -> dict[str, Tensor]:
            whole = encoded._replace(features=features)
            return {name: decoder(whole) for name, decoder in self.decoders.items()}

        return encoded.features, decode
