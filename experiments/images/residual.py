"""What benchmarks on a residual network share: their options, and the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from experiments.benchmark import Benchmark
from experiments.errors import DataError, SettingsError
from experiments.settings import require, require_numbers
from models.errors import MissingPackageError, NetworkError
from models.resnet import ResNetFeatures, WeightsError


@dataclass(frozen=True)
class OnResNet(Benchmark):
    """Images for a residual network.

    Attributes:
        depth: Of the residual network, 18 or 34.
        weights: What it starts from: ``"imagenet"``, a file with a state dict, or None (random).
        size: Height and width of what the network sees; a quarter is sixteen times as fast.
        width: Features of the network.
    """

    packages: ClassVar[Sequence[str]] = ("pillow", "torchvision")
    places: ClassVar[frozenset[str]] = frozenset({"data"})
    later: ClassVar[frozenset[str]] = frozenset({"size", "width"})

    depth: int = 18
    weights: str | None = None
    size: int = 128
    width: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 16, "size", self.size, "give at least 16 pixels")
        require_numbers(self, "width", least=1)
        require(self.depth in (18, 34), "depth", self.depth, "give 18 or 34")

    def backbone(self) -> nn.Module:
        """A residual network.

        Raises:
            SettingsError: There is no such depth, or torchvision is missing.
            DataError: The weights cannot be had, or do not fit.
        """
        try:
            return ResNetFeatures(self.depth, self.width, weights=self.weights)
        except (NetworkError, MissingPackageError) as error:
            raise SettingsError(str(error)) from error
        except WeightsError as error:
            raise DataError(str(error)) from error
