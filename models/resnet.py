"""Residual networks (He et al., 2016) from torchvision, as feature extractors.

The classification layer is replaced by a linear layer with ELU. Every parameter, the new layer's
included, belongs to the network and is trained.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn

from models.errors import MissingPackageError, NetworkError
from models.files import DamagedFileError, finite, only_data, parsed, reason, tensors

DEPTHS: Final = (18, 34)

_WIDTH: Final = 512  # of what both give before their classification layer

IMAGENET: Final = "imagenet"
"""Name of the weights that torchvision offers, trained on ImageNet."""


class WeightsError(ValueError):
    """Weights to start from are missing, damaged, or another network's."""


class ResNetFeatures(nn.Module):
    """A residual network whose last layer is Linear(512, features) + ELU.

    Args:
        depth: 18 or 34.
        features: d, the number of features.
        weights: Where to start from: ``"imagenet"`` (torchvision downloads its file once and keeps
            it), a file with such a network's state dict as torchvision saves it (its classification
            layer is left out), or None for a random start. The new layer always starts at random.

    Raises:
        NetworkError: A depth that there is none of, or no features.
        WeightsError: The weights cannot be had, or do not fit.
        MissingPackageError: torchvision is not installed.
    """

    def __init__(
        self, depth: int = 18, features: int = 256, weights: str | Path | None = None
    ) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise NetworkError(
                f"depth = {depth} is not at hand: give one of {', '.join(map(str, DEPTHS))}"
            )
        if features < 1:
            raise NetworkError(f"features = {features} cannot work: give at least 1")
        self.trunk = trunk(depth, weights)
        self.projection = nn.Linear(_WIDTH, features)
        self.activation = nn.ELU()
        self.out_features = features  #: d

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, out_features] of images [B, 3, height, width]."""
        features: Tensor = self.activation(self.projection(self.trunk(images)))
        return features


def trunk(depth: int, weights: str | Path | None, **options: Any) -> nn.Module:
    """torchvision's residual network without its classification layer.

    Args:
        depth: That torchvision has.
        weights: As for :class:`ResNetFeatures`.
        options: Of torchvision.

    Raises:
        WeightsError: The weights cannot be had, or do not fit.
        MissingPackageError: torchvision is not installed.
    """
    models = _torchvision().models
    state = None
    if weights is not None:  # before the network is made: what cannot work fails at once
        state = _imagenet(models, depth) if weights == IMAGENET else _read(Path(weights))
    network: nn.Module = getattr(models, f"resnet{depth}")(weights=None, **options)
    network.fc = nn.Identity()
    if state is not None:
        _load(network, state, str(weights), depth)
    return network


def _torchvision() -> ModuleType:
    try:
        import torchvision
    except ImportError as error:
        raise MissingPackageError(
            "residual networks come from torchvision, which is not installed: "
            "pip install torchvision"
        ) from error
    package: ModuleType = torchvision
    return package


def _imagenet(models: Any, depth: int) -> dict[str, Tensor]:
    """What torchvision offers, from its cache or the network."""
    published = models.get_model_weights(f"resnet{depth}").IMAGENET1K_V1
    try:
        with only_data():  # the hash is looked at after a download, not when the file is there
            state = published.get_state_dict(progress=True, check_hash=True)
    except Exception as error:  # torch and zip archives raise about ten kinds
        raise WeightsError(
            f"the ImageNet weights of ResNet-{depth} cannot be had ({reason(error)}): fetch "
            f"{published.url} elsewhere and give the file, or start without weights"
        ) from error
    return _checked(state, published.url)


def _read(file: Path) -> dict[str, Tensor]:
    """A state dict from a file, without running any code in it."""
    if not file.is_file():
        raise WeightsError(
            f"there is no weights file {file}: give a file, {IMAGENET!r}, or no weights"
        )
    try:
        return _checked(parsed(file, tensors), file)
    except OSError as error:
        raise WeightsError(
            f"the weights file {file} cannot be read ({error.strerror or error}): change its "
            "permissions, or try again"
        ) from error
    except DamagedFileError as error:
        raise WeightsError(
            f"{file} is damaged or not a state dict ({error}): save "
            "network.state_dict() with torch.save, or fetch the file again"
        ) from error


def _checked(state: Any, source: object) -> dict[str, Tensor]:
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and finite(value) for name, value in state.items()
    ):
        raise WeightsError(
            f"{source} holds a {type(state).__name__}, not a state dict of tensors (by name, and "
            "finite): save network.state_dict()"
        )
    return state


def _load(trunk: nn.Module, state: dict[str, Tensor], source: str, depth: int) -> None:
    """Copy ``state`` without its classification layer; everything else must fit exactly."""
    given = {name: value for name, value in state.items() if not name.startswith("fc.")}
    wanted = trunk.state_dict()
    wrong = [f"{name} is missing" for name in wanted if name not in given]
    wrong += [f"{name} is unknown" for name in given if name not in wanted]
    wrong += [
        f"{name} is {list(given[name].shape)}, not {list(value.shape)}"
        for name, value in wanted.items()
        if name in given and given[name].shape != value.shape
    ]
    if wrong:
        raise WeightsError(
            f"the weights in {source} are not those of a ResNet-{depth} "
            f"({'; '.join(wrong[:3])}{'; ...' if len(wrong) > 3 else ''}): give such a file, or "
            "no weights"
        )
    trunk.load_state_dict(given)
