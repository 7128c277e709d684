"""Worked studies: a module each, which answers one question by small experiments, with figures.

``find(name)`` is the study of the module of that name; ``study.conduct`` carries it out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from experiments.errors import SettingsError

if TYPE_CHECKING:
    from experiments.studies.study import Study

NAMES: Final = ("approximations", "priors", "missing", "heads", "calibration")
"""In the order of the documentation."""


def find(name: str) -> Study:
    """The study called ``name``.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in NAMES:
        raise SettingsError(f"study = {name!r} is unknown: give one of {', '.join(NAMES)}")
    found: Study = importlib.import_module(f"experiments.studies.{name}").STUDY
    return found
