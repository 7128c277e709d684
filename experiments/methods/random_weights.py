"""Random loss weighting (RLW)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.methods.base import MethodOptions
from experiments.methods.weighted import WeightedLosses
from experiments.settings import require

__all__ = ["RandomWeights", "SeededOptions", "balanced", "new_generator"]


@dataclass(frozen=True)
class SeededOptions(MethodOptions):
    """Options of a method that draws random numbers.

    Attributes:
        seed: Of its draws. None takes one from torch's global generator when the method is made, as
            initial weights do, so that it follows the seed of the run.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.seed is None or (isinstance(self.seed, int) and self.seed >= 0),
            "seed",
            self.seed,
            "give a whole number of at least 0, or leave it out",
        )


class RandomWeights(WeightedLosses):
    """Descend Σ w_k ℓ_k with w = K softmax(z), z ~ N(0, I) drawn anew for each batch.

    Source: Lin et al., Reasonable Effectiveness of Random Weighting, TMLR 2022, whose weights sum
    to 1; here to K, so that the step is as large as that of LS.
    """

    name: ClassVar[str] = "rlw"
    title: ClassVar[str] = "RLW"
    options_type: ClassVar[type[MethodOptions]] = SeededOptions

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: SeededOptions
    ) -> None:
        super().__init__(backbone, heads, options)
        self.generator = new_generator(options.seed)

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ w_k ℓ_k, over the tasks that are present."""
        drawn = torch.randn(len(losses), generator=self.generator)
        return balanced(drawn.to(losses), present) @ losses

    def state_dict(self) -> dict[str, Any]:
        """State of the network and of the generator."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self.generator.set_state(state["generator"])


def balanced(logits: Tensor, present: Tensor | None) -> Tensor:
    """Weights ``[K]``: K softmax, over the tasks that are present where some are not.

    Args:
        logits: ``[K]``.
        present: ``[K]``; None when all are.
    """
    if present is None:
        return len(logits) * logits.softmax(0)
    weights = torch.where(present, logits, -torch.inf).softmax(0)
    return present.sum() * torch.where(present, weights, 0.0)  # 0/0 where none is


def new_generator(seed: int | None) -> torch.Generator:
    """A generator on the CPU; see :class:`SeededOptions`."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ()))
    return torch.Generator().manual_seed(seed)
