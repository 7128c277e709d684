"""The optional package TorchJD, imported when a method needs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from experiments.errors import SettingsError

__all__ = ["module"]


def module(part: str, method: str) -> ModuleType:
    """``torchjd.<part>``.

    Args:
        part: ``"aggregation"`` or ``"scalarization"``.
        method: Who needs it, for the message.

    Raises:
        SettingsError: TorchJD is not installed, or its interface is another one.
    """
    try:
        return importlib.import_module(f"torchjd.{part}")
    except ImportError as error:
        raise SettingsError(
            f"method {method} needs TorchJD 0.18, which cannot be imported ({error}): "
            'pip install "bayesagg_pyro[torchjd]"'
        ) from error
