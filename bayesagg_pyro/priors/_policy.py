"""Policies: where the prior of a step comes from, and how it changes over training.

A policy is a setting (immutable, shared by heads). For every head it starts a tracker, which holds
what changes: statistics collected on the way and the prior in force.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro.heads import Head
from bayesagg_pyro.inference import Scheme
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import Targets

__all__ = ["Policy", "Tracker"]


class Tracker(ABC):
    """The prior of one head over time."""

    #: The prior in force, None before the first `accept`.
    prior: Posterior | None = None

    @abstractmethod
    def collect(self, features: Tensor, targets: Targets, valid: Tensor | None = None) -> None:
        """Take in a training batch: features [B, d] (no graph is kept), targets [B, tasks].

        Args:
            features: [B, d].
            targets: [B, tasks].
            valid: a boolean scalar on the device; the batch is left out where it is False.
        """

    @abstractmethod
    def propose(self) -> Posterior:
        """End of an epoch: the next prior, from what was collected; changes nothing.

        Raises:
            StateError: if nothing was collected.
            NumericalError: if it cannot be computed.
        """

    @abstractmethod
    def accept(self, prior: Posterior) -> None:
        """Put the proposed prior in force and clear what was collected."""

    def update(self) -> None:
        """Propose and accept."""
        self.accept(self.propose())

    @property
    @abstractmethod
    def collected(self) -> bool:
        """Whether there is anything to make a prior from."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move prior and statistics."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` saved."""


class Policy(ABC):
    """A rule for the prior over time."""

    @abstractmethod
    def start(self, head: Head, scheme: Scheme) -> Tracker:
        """Begin tracking the prior of `head`, whose posteriors `scheme` infers."""
