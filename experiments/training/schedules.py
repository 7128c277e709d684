"""How the learning rate falls: a schedule says the rate, :func:`set_rate` tells the optimiser."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

from torch import Tensor
from torch.optim import Optimizer

from experiments.files.reading import NUMBER, VALUE, fits
from experiments.settings import Settings

STEPS: Final = (0.6, 0.8)
"""Shares of the epochs after which ``"steps"`` divides the learning rate by ten."""

_BETTER: Final = 1e-4  # torch's ReduceLROnPlateau: a best score must be better by this share


class Schedule(Protocol):
    """The learning rate over the epochs."""

    @property
    def rate(self) -> float:
        """Of the epoch to come."""

    def step(self, score: float) -> None:
        """An epoch is over, with this validation score (lower is better): go to the next rate."""

    def state_dict(self) -> dict[str, Any]:
        """What must be kept to go on."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


def make(settings: Settings) -> Schedule:
    """The schedule that the settings name, before the first epoch."""
    if settings.schedule == "plateau":
        return _Plateau(settings)
    return _Fixed(settings)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate in place where the optimiser keeps it on a device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def steps(epoch: int, epochs: int) -> float:
    """Factor of the learning rate in epoch ``epoch`` (from 0) of ``epochs``."""
    return float(0.1 ** sum(epoch >= round(share * epochs) for share in STEPS))


def cosine(epoch: int, epochs: int, first: float, last: float) -> float:
    """Learning rate in epoch ``epoch`` (from 0) of ``epochs``: ``first`` to ``last``."""
    turn = math.pi * min(epoch, epochs - 1) / max(epochs - 1, 1)
    return last + (first - last) * (1 + math.cos(turn)) / 2


class _Fixed:
    """Tied to the number of epochs of the run at hand, also when a shorter one is continued."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._epoch = settings, 0

    @property
    def rate(self) -> float:
        """The rate of the epoch to come."""
        given = self._settings
        if given.schedule == "steps":
            return given.learning_rate * steps(self._epoch, given.epochs)
        last = min(given.minimum_learning_rate, given.learning_rate)
        return cosine(self._epoch, given.epochs, given.learning_rate, last)

    def step(self, score: float) -> None:
        """The score does not matter."""
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of epochs done."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, at the learning rate that this run has in that epoch."""
        fits(state_dict, {"epoch": int})
        self._epoch = state_dict["epoch"]


class _Plateau:
    """As torch's ``ReduceLROnPlateau``, of the smoothed score."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.rate = settings.learning_rate
        self._smoothed: float | None = None
        self._best: float | None = None
        self._waited = 0

    def step(self, score: float) -> None:
        """Lower the rate after too many epochs without a new best."""
        given, before = self._settings, self._smoothed
        share = given.score_smoothing
        smoothed = score if before is None else share * before + (1 - share) * score
        self._smoothed = smoothed
        best = self._best
        if best is None or smoothed < best - _BETTER * abs(best):
            self._best, self._waited = smoothed, 0
            return
        self._waited += 1
        if self._waited > given.plateau_patience:
            self.rate = max(self.rate * given.plateau_factor, given.minimum_learning_rate)
            self._waited = 0

    def state_dict(self) -> dict[str, Any]:
        """Rate, average and memory."""
        return {
            "rate": self.rate,
            "smoothed": self._smoothed,
            "best": self._best,
            "waited": self._waited,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        fits(state_dict, {"rate": NUMBER, "smoothed": VALUE, "best": VALUE, "waited": int})
        self.rate, self._smoothed = state_dict["rate"], state_dict["smoothed"]
        self._best, self._waited = state_dict["best"], state_dict["waited"]
