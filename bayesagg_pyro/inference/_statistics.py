"""Sufficient statistics of a Gaussian head: sums, so they add over batches and over processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro import linalg
from bayesagg_pyro.errors import StateError
from bayesagg_pyro.heads import Gaussian
from bayesagg_pyro.targets import Targets

__all__ = ["GaussianStatistics", "Statistics", "data_terms"]


class Statistics(ABC):
    """What a scheme keeps of the training batches to make a full-data posterior of them."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether any batch has been added."""

    @abstractmethod
    def add(self, features: Tensor, targets: Targets, valid: Tensor | None = None) -> None:
        """Take in a batch.

        Args:
            features: [B, d].
            targets: [B, tasks].
            valid: boolean scalar on the device; where False, the batch adds nothing.
        """

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move what was collected."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What was collected."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` saved."""


class GaussianStatistics(Statistics):
    """Σ h hᵀ / τ² and Σ h y / τ² over all examples seen, O(T D²) memory at most.

    Attributes:
        precision: [1, D, D] while all tasks share noise and examples, else [tasks, D, D]; float64.
        shift: [tasks, D], Σ h y / τ².
        count: [tasks], observed examples.
    """

    def __init__(self, head: Gaussian) -> None:
        self._head = head
        device = head.weight.device
        size, dtype = head.weight_size, linalg.head_dtype(device)
        self._noise_precision = head.noise_scale.to(device, dtype).square().reciprocal()
        rows = 1 if self._noise_precision.ndim == 0 else head.tasks
        self.precision = torch.zeros(rows, size, size, dtype=dtype, device=device)
        self.shift = torch.zeros(head.tasks, size, dtype=dtype, device=device)
        self.count = torch.zeros(head.tasks, dtype=dtype, device=device)
        self._batches = 0

    def __bool__(self) -> bool:
        return self._batches > 0

    def add(self, features: Tensor, targets: Targets, valid: Tensor | None = None) -> None:
        """Add a batch's terms to the sums."""
        precision, shift = data_terms(self._head.exact(features), targets, self._noise_precision)
        count = targets.counts().to(shift.dtype)
        if valid is not None:
            precision, shift, count = (
                torch.where(valid, term, 0.0) for term in (precision, shift, count)
            )
        if precision.shape[0] > self.precision.shape[0]:  # the first batch with missing targets
            self.precision = self.precision.expand_as(precision).clone()
        self.precision += precision
        self.shift += shift
        self.count += count
        self._batches += 1

    def to(self, device: torch.device) -> None:
        """Move the sums."""
        self._noise_precision = self._noise_precision.to(device)
        self.precision = self.precision.to(device)
        self.shift = self.shift.to(device)
        self.count = self.count.to(device)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the sums, which later batches leave alone."""
        return {
            "precision": self.precision.clone(),
            "shift": self.shift.clone(),
            "count": self.count.clone(),
            "batches": self._batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved sums.

        Raises:
            StateError: if they are those of another head.
        """
        if state["shift"].shape != self.shift.shape:
            raise StateError(
                f"head {self._head.site!r} has weights of shape {list(self.shift.shape)}, the "
                f"saved sums are for {list(state['shift'].shape)}; make the heads as saved"
            )
        device = self.shift.device
        self.precision = state["precision"].to(device).clone()
        self.shift = state["shift"].to(device).clone()
        self.count = state["count"].to(device).clone()
        self._batches = state["batches"]


def data_terms(design: Tensor, targets: Targets, noise_precision: Tensor) -> tuple[Tensor, Tensor]:
    """What a batch adds to the precision and to precision × mean of a Gaussian head.

    Args:
        design: [B, D].
        targets: [B, tasks]; may be residuals.
        noise_precision: τ⁻², [] or [tasks].

    Returns:
        τ⁻² HᵀH, [1 or tasks, D, D], and τ⁻² Hᵀy, [tasks, D], over the observed examples.
    """
    values = targets.values.to(design.dtype)
    factor = targets.factor(design.dtype)
    precision = linalg.gram(design, factor)
    shift = (values if factor is None else values * factor).mT @ design
    noise_precision = noise_precision.reshape(-1, 1)
    return precision * noise_precision[..., None], shift * noise_precision
