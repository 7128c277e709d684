"""What the dense benchmarks share: heads, targets and metrics of pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from bayesagg_pyro.heads import Head
from experiments.benchmark import Benchmark, Data, Task
from experiments.dense.frames import augmented, pixel_rows, seen_depth, seen_label, seen_normal
from experiments.dense.metrics import DenseMeter, measures
from experiments.dense.split import DenseSplit, Part, Statistics
from experiments.errors import DataError, SettingsError
from experiments.settings import Settings, require, require_numbers
from models.dilated_resnet import AsppDecoder, DilatedResNetEncoder
from models.encoder_decoder import Branches, EncoderDecoder
from models.errors import MissingPackageError, NetworkError
from models.resnet import WeightsError
from models.segnet import SegNetDecoder, SegNetEncoder

Decoders = Literal["shared", "task"]
Net = Literal["segnet", "resnet"]
Regression = Literal["gaussian", "heteroscedastic"]

HEADS: Final = ("segmentation", "depth", "normal")

_COLUMNS: Final = {"segmentation": 1, "depth": 1, "normal": 3}
_SEEN: Final = {"segmentation": seen_label, "depth": seen_depth, "normal": seen_normal}
_STATISTICS_OF: Final = 100
"""Training images whose targets say how to standardise; more would say the same."""


@dataclass(frozen=True)
class Dense(Benchmark):
    """A benchmark with up to three targets in every pixel.

    Heads are 1 × 1: linear in the features of a pixel. Segmentation is `Categorical`; depth is
    `Gaussian` in the standardised logarithm, so that the exponential of its mean is the median;
    normals are three Gaussian tasks, one for each coordinate, and the metric makes unit vectors of
    their predictions: half their squared error is 1 − cosine, of unit vectors. Both may be
    `Heteroscedastic` instead.

    Attributes:
        network: "segnet", or "resnet": a dilated ResNet (torchvision's) with ASPP decoders.
        width: Channels of the network's finest level, the features of a pixel.
        levels: How often SegNet halves height and width.
        depth: Of the ResNet, 50 or 101.
        weights: What the ResNet starts from: None (random), "imagenet", or a file with a state
            dict.
        decoders: One for all heads, whose features they share ("shared"), or one for each ("task").
        regression: Likelihood of depth and normals: "gaussian", or "heteroscedastic", whose noise
            differs between pixels.
        only: One head to train alone: segmentation, depth or normal, as far as there are such; None
            for all.
    """

    metric: ClassVar[str] = "segmentation, depth and normals of pixels"
    smallest_batch: ClassVar[int] = 1
    joint: ClassVar[frozenset[str]] = frozenset({"normal"})
    watched: ClassVar[int] = 1
    later: ClassVar[frozenset[str]] = frozenset({"network", "depth", "weights"})
    default_settings: ClassVar[Settings] = Settings(
        epochs=200, batch_size=2, learning_rate=1e-4, schedule="steps", head_bias=True
    )
    method_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bayesagg": {
            "pretrain": 5,
            "power": 0.5,
            "prior_variance": 1.0,
            "resolution": "task",
            "reduction": "sum",
        }
    }
    depth_unit: ClassVar[str] = "m"
    inverse_depth: ClassVar[bool] = False
    every_head: ClassVar[Sequence[str]] = HEADS

    network: Net = "segnet"
    width: int = 64
    levels: int = 5
    depth: int = 50
    weights: str | None = None
    decoders: Decoders = "shared"
    regression: Regression = "gaussian"
    only: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"give one of {', '.join(self.every_head)}, or none"
        require(self.only in (None, *self.every_head), "task", self.only, remedy)
        require_numbers(self, "levels", least=1, most=5)
        require_numbers(self, "width", least=1)

    @property
    @abstractmethod
    def number_of_classes(self) -> int:
        """How many classes there are."""

    @property
    def published(self) -> Sequence[float] | None:
        """Metrics of single-task networks, of all heads in order; None if nobody knows."""
        return None

    @property
    def class_names(self) -> Sequence[str]:
        """For figures and tables."""
        return [f"class {index}" for index in range(self.number_of_classes)]

    @abstractmethod
    def parts(self) -> tuple[Part, Part, Part]:
        """Images for training, validation and test."""

    @property
    def own_heads(self) -> Sequence[str]:
        """Names of the heads that are trained."""
        return self.every_head if self.only is None else (self.only,)

    @property
    def tasks(self) -> Sequence[Task]:
        """The metrics; several belong to a head."""
        return measures(self.own_heads, self.depth_unit, self.published)

    @property
    def losses(self) -> Sequence[str]:
        """Segmentation, depth, and the coordinates of the normals."""
        return [
            head if _COLUMNS[head] == 1 else f"{head}_{'xyz'[column]}"
            for head in self.own_heads
            for column in range(_COLUMNS[head])
        ]

    def look(self) -> str:
        """How many images there are."""
        train, validation, test = (len(rows) for _, rows in self.parts())
        return f"{train:,}/{validation:,}/{test:,} images in {self.options()['data']}"

    def load(self, device: torch.device) -> Data:
        """Read the images, or render them.

        Raises:
            DataError: They are missing or damaged.
        """
        parts = self.parts()
        source, rows = parts[0]
        classes = self.number_of_classes
        first = source.read(rows[:_STATISTICS_OF])
        statistics = Statistics.of(first, classes)
        change = partial(augmented, inverse_depth=self.inverse_depth)
        train, validation, test = (
            DenseSplit(*part, self.own_heads, statistics, device, change) for part in parts
        )
        constants = {
            # One pixel in a million keeps the logarithm finite where a class does not occur.
            "segmentation": statistics.classes.clamp(min=1e-6).log().float(),
            "depth": torch.zeros(1),
            "normal": statistics.normal,
        }
        mean, std = statistics.depth_mean, statistics.depth_std
        return Data(
            train,
            validation,
            test,
            constants={head: constants[head] for head in self.own_heads},
            meter=partial(DenseMeter, self.own_heads, self.class_names, mean, std),
            about={
                "images": source.digest(),
                "height": first.label.shape[-2],
                "width": first.label.shape[-1],
                "depth_log_mean": mean,
                "depth_log_std": std,
            },
            missing={
                loss: 1 - float(_SEEN[loss.partition("_")[0]](first).double().mean())
                for loss in self.losses
            },
        )

    def backbone(self) -> nn.Module:
        """SegNet, or a dilated residual network.

        Raises:
            SettingsError: There is none of that size, or torchvision is missing.
            DataError: The weights to start from cannot be had, or do not fit.
        """
        try:
            encoder, decoder = self._parts()
            if self.decoders == "task":
                return BranchedPixels(Branches(encoder, {h: decoder() for h in self.own_heads}))
            return Pixels(EncoderDecoder(encoder, decoder()))
        except (NetworkError, MissingPackageError) as error:
            raise SettingsError(str(error)) from error
        except WeightsError as error:
            raise DataError(str(error)) from error

    def _parts(self) -> tuple[nn.Module, Callable[[], nn.Module]]:
        """The encoder, and what makes a decoder."""
        width, levels = self.width, self.levels
        if self.network == "segnet":
            return SegNetEncoder(width, levels), partial(SegNetDecoder, width, levels)
        encoder = DilatedResNetEncoder(self.depth, self.weights)
        return encoder, partial(AsppDecoder, width)

    def heads(self, bias: bool) -> dict[str, Head]:
        """One head for each kind of target."""
        width, varying = self.width, self.regression == "heteroscedastic"
        regression = heads.Heteroscedastic if varying else heads.Gaussian
        make: dict[str, Callable[[], Head]] = {
            "segmentation": lambda: heads.Categorical(width, self.number_of_classes, bias=bias),
            "depth": lambda: regression(width, tasks=1, bias=bias),
            "normal": lambda: regression(width, tasks=3, bias=bias),
        }
        return {head: make[head]() for head in self.own_heads}


class Pixels(nn.Module):
    """A network whose features [B, d, H, W] are handed over as rows, [B · H · W, d]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """One row for each pixel."""
        return pixel_rows(self.network(images))


class BranchedPixels(nn.Module):
    """The same of a network with a decoder for each head."""

    def __init__(self, network: Branches) -> None:
        super().__init__()
        self.network = network
        self.branches = network.decoders

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """For each head one row for each pixel."""
        shared, decode = self.halves(images)
        return decode(shared)

    def halves(self, images: Tensor) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
        """What the encoder gives, and what the decoders make of that."""
        shared, decode = self.network.halves(images)
        return shared, lambda features: {h: pixel_rows(own) for h, own in decode(features).items()}
