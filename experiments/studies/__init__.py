"""Worked studies: a module each, which answers one question by small experiments, with figures.

``study.conduct`` carries one out, by the ``run`` of the module of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from experiments.errors import SettingsError

QUESTIONS: Final[Mapping[str, str]] = {
    "approximations": "How far are inference schemes apart on a real head, and does it change the "
    "update?",
    "priors": "Which prior keeps the head in step with features that move?",
    "missing": "What do LS and BayesAgg make of missing labels?",
    "heads": "What do a non-linear head and a Gaussian process bring?",
    "calibration": "Does each inference scheme put true weights where its posterior says?",
}
"""By the name of the study, in the order of the documentation."""


def question(name: str) -> str:
    """What the study called ``name`` answers.

    Raises:
        SettingsError: There is none; the message lists those there are.
    """
    if name not in QUESTIONS:
        raise SettingsError(f"study = {name!r} is unknown: give one of {', '.join(QUESTIONS)}")
    return QUESTIONS[name]
