"""Backbones whose errors are those of an experiment."""

from __future__ import annotations

from torch import nn

from experiments.errors import DataError, SettingsError
from models.errors import MissingPackageError, NetworkError
from models.resnet import ResNetFeatures, WeightsError

__all__ = ["residual_network"]


def residual_network(depth: int, weights: str | None, features: int = 256) -> nn.Module:
    """A residual network with so many features.

    Raises:
        SettingsError: There is no such depth, or torchvision is missing.
        DataError: The weights cannot be had, or do not fit.
    """
    try:
        return ResNetFeatures(depth, features, weights=weights)
    except (NetworkError, MissingPackageError) as error:
        raise SettingsError(str(error)) from error
    except WeightsError as error:
        raise DataError(str(error)) from error
