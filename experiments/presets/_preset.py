"""What a preset is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments import methods
from experiments.methods import MethodOptions
from experiments.settings import Settings

__all__ = ["Preset"]


@dataclass(frozen=True)
class Preset:
    """Options that differ from the defaults of the trainer and of a method.

    Attributes:
        name: As on the command line.
        about: One line for people.
        settings: Of the trainer.
        bayesagg: Of Bayesian aggregation; other methods have no options here.
    """

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    bayesagg: Mapping[str, Any] = field(default_factory=dict)

    def make_settings(self, given: Mapping[str, Any]) -> Settings:
        """Settings of the trainer: those given (None stands for not given), else the preset's.

        Raises:
            SettingsError: A value that cannot work.
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        return Settings(**{**self.settings, **chosen})

    def make_options(self, method: str, given: Mapping[str, Any]) -> MethodOptions:
        """Options of a method, likewise.

        Raises:
            SettingsError: No such method or option, or a value that cannot work.
        """
        return methods.options(method, given, {"bayesagg": self.bayesagg})

    def changed(self, **changes: Any) -> Preset:
        """A copy with other options of Bayesian aggregation."""
        return dataclasses.replace(self, bayesagg={**self.bayesagg, **changes})
