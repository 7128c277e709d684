"""How the learning rate falls."""

from __future__ import annotations

from typing import Any, Final, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from experiments.settings import Settings

__all__ = ["STEPS", "Schedule", "make", "steps"]

STEPS: Final = (0.6, 0.8)
"""Shares of the epochs after which ``"steps"`` divides the learning rate by ten."""


class Schedule(Protocol):
    """Sets the optimiser's learning rate after every epoch."""

    def step(self, score: float) -> None:
        """An epoch is over, with this validation score (lower is better)."""

    def state_dict(self) -> dict[str, Any]:
        """What must be kept to go on."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


def make(optimizer: Optimizer, settings: Settings) -> Schedule:
    """The schedule that the settings name."""
    if settings.schedule == "steps":
        return _Steps(optimizer, settings.epochs)
    return ReduceLROnPlateau(
        optimizer,
        mode="min",
        factor=settings.plateau_factor,
        patience=settings.plateau_patience,
        min_lr=settings.minimum_learning_rate,
    )


def steps(epoch: int, epochs: int) -> float:
    """Factor of the learning rate in epoch ``epoch`` (from 0) of ``epochs``."""
    return float(0.1 ** sum(epoch >= round(share * epochs) for share in STEPS))


class _Steps:
    """Tied to the number of epochs of the run at hand, also when a shorter one is continued."""

    def __init__(self, optimizer: Optimizer, epochs: int) -> None:
        self._optimizer, self._epochs = optimizer, epochs
        self._inner = LambdaLR(optimizer, lambda epoch: steps(epoch, epochs))

    def step(self, score: float) -> None:
        """The score does not matter."""
        self._inner.step()

    def state_dict(self) -> dict[str, Any]:
        """The number of epochs done, and the learning rates at the start."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, at the learning rate that this run has in that epoch."""
        self._inner.load_state_dict(state_dict)
        factor = steps(self._inner.last_epoch, self._epochs)
        for group, base in zip(self._optimizer.param_groups, self._inner.base_lrs, strict=True):
            group["lr"] = base * factor
