"""Presets of the QM9 benchmark; ``docs/qm9.md`` has the evidence."""

from __future__ import annotations

from typing import Final

from experiments.errors import SettingsError
from experiments.presets._preset import Preset

__all__ = ["PAPER", "PRESETS", "RECOMMENDED", "find"]

PAPER: Final = Preset(
    "paper",
    "the published protocol: s = 0.85, γ = 1e-3, weights per example, weights that sum to 1, prior "
    "of the last epoch's features, plateau schedule on validation Δm",
    settings={
        "epochs": 300,
        "batch_size": 120,
        "learning_rate": 1e-3,
        "schedule": "plateau",
        "plateau_factor": 0.7,
        "plateau_patience": 5,
        "minimum_learning_rate": 1e-5,
        "head_bias": False,
    },
    bayesagg={
        "pretrain": 50,
        "power": 0.85,
        "prior": "full-data",
        "prior_variance": 1e-3,
        "resolution": "example",
        "scale": "mean",
    },
)

RECOMMENDED: Final = Preset(
    "recommended",
    "the best found: a short pre-training whose step is kept, γ = 1, one weight per task, prior of "
    "fresh features, cosine schedule",
    settings={
        "epochs": 300,
        "batch_size": 120,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "minimum_learning_rate": 1e-5,
        "head_bias": False,
    },
    bayesagg={
        "pretrain": 12,
        "power": 0.8,
        "prior": "fresh",
        "prior_variance": 1.0,
        "resolution": "task",
        "scale": "sum",
    },
)

PRESETS: Final = {preset.name: preset for preset in (PAPER, RECOMMENDED)}


def find(name: str) -> Preset:
    """The preset called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise SettingsError(f"preset = {name!r} is unknown: give one of {', '.join(PRESETS)}")
    return PRESETS[name]
