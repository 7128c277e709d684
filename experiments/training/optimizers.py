"""Adam, made for steps from Python or for captured ones, its kinds, and how its rate falls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer

from experiments.files.reading import NUMBER, VALUE, fits
from experiments.settings import Settings
from models.files import finite

STEPS: Final = (0.6, 0.8)
"""Shares of the epochs after which ``"steps"`` divides the learning rate by ten."""

_BETTER: Final = 1e-4  # torch's ReduceLROnPlateau: a best score must be better by this share


def optimizer_of(
    parameters: Iterable[Parameter], settings: Settings, device: torch.device, captured: bool
) -> Optimizer:
    """The optimiser that the settings name, with their weight decay.

    Args:
        parameters: What to train.
        settings: Of the trainer.
        device: Where the parameters are.
        captured: Keep the learning rate in a tensor, where a replayed step finds it; it is then
            rounded to float32.
    """
    rate = settings.learning_rate
    kind = AdamW if settings.optimizer == "adamw" else Adam
    return kind(
        parameters,
        lr=torch.tensor(rate, device=device) if captured else rate,
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
        capturable=captured and device.type == "cuda",
        fused=True,  # one kernel; the many small ones cost as much as a head
    )


def load_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Restore moments and numbers of steps; how the optimiser works is its own.

    A run may go on elsewhere, so that what was captured there is stepped from Python here.

    Raises:
        ValueError: The state is not of these parameters, or not finite.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, moments in state.items():
        shape = parameters[index].shape if index in range(len(parameters)) else None
        for name, wanted in (("step", ()), ("exp_avg", shape), ("exp_avg_sq", shape)):
            value = moments.get(name) if isinstance(moments, dict) else None
            if not (finite(value) and isinstance(value, Tensor) and value.shape == wanted):
                raise ValueError(f"{name} of parameter {index} does not fit")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate in place where the optimiser keeps it on a device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def schedule_of(settings: Settings) -> FixedSchedule | PlateauSchedule:
    """The schedule that the settings name: ``rate`` is that of the epoch to come."""
    return PlateauSchedule(settings) if settings.schedule == "plateau" else FixedSchedule(settings)


# Torch's compute a rate from the one before, which rounds differently, and a state that is loaded
# brings back the length of the run that it was saved in.
class FixedSchedule:
    """Tied to the number of epochs of the run at hand, also when a shorter one is continued."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._epoch = settings, 0

    @property
    def rate(self) -> float:
        """The rate of the epoch to come."""
        given, epoch = self._settings, self._epoch
        if given.schedule == "steps":
            passed = sum(epoch >= round(share * given.epochs) for share in STEPS)
            return given.learning_rate * float(0.1**passed)
        first = given.learning_rate
        last = min(given.minimum_learning_rate, first)
        turn = math.pi * min(epoch, given.epochs - 1) / max(given.epochs - 1, 1)
        return last + (first - last) * (1 + math.cos(turn)) / 2

    def step(self, score: float) -> None:
        """An epoch is over; its validation score does not matter."""
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of epochs done."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, at the learning rate that this run has in that epoch."""
        fits(state_dict, {"epoch": int})
        self._epoch = state_dict["epoch"]


# Torch's takes an equal score for a better one where it is negative, as Δm may be, and so never
# lowers the rate.
class PlateauSchedule:
    """As torch's ``ReduceLROnPlateau``, of the smoothed score."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.rate = settings.learning_rate
        self._smoothed: float | None = None
        self._best: float | None = None
        self._waited = 0

    def step(self, score: float) -> None:
        """Lower the rate after too many epochs without a new best (lower is better)."""
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
            lower = max(self.rate * given.plateau_factor, given.minimum_learning_rate)
            self.rate = min(self.rate, lower)
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
