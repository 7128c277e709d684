"""Backbones that give each head features of its own: a shared part, then a branch for each head.

Such a backbone has an attribute ``branches``, a ``ModuleDict`` of the branch of each head, and a
method ``halves`` from inputs to what they share and a function from that to ``{head: features}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from experiments.settings import require

Features = Tensor | Mapping[str, Tensor]
"""``[B, d]`` for all heads, or ``{head: [B, d]}``."""


def branched(backbone: nn.Module) -> bool:
    """Whether heads read different features."""
    return hasattr(backbone, "branches")


def refuse(backbone: nn.Module, method: str, why: str) -> None:
    """Raise SettingsError, for a method that cannot train a backbone with branches."""
    require(not branched(backbone), "method", method, why)


def keep_branch(backbone: nn.Module, head: str) -> None:
    """Take out the branches of other heads, if there are any."""
    if branched(backbone):
        every: Any = backbone.branches
        for other in [name for name in every if name != head]:
            del every[other]


def read_by(head: str, features: Features) -> Tensor:
    """The features that a head reads."""
    return features if isinstance(features, Tensor) else features[head]


def halves(backbone: nn.Module, inputs: Any) -> tuple[Tensor, Callable[[Tensor], Features]]:
    """What all heads share, where gradients of tasks meet, and how it goes on to the heads."""
    if branched(backbone):
        shared, decode = backbone.halves(inputs)  # type: ignore[operator]
        return shared, decode
    return backbone(inputs), lambda features: features


def parameters(backbone: nn.Module) -> tuple[list[Parameter], list[Parameter]]:
    """The trained parameters that all heads share, and those of branches."""
    branches = set(backbone.branches.parameters()) if branched(backbone) else set()  # type: ignore[union-attr]
    trained = [p for p in backbone.parameters() if p.requires_grad]
    return [p for p in trained if p not in branches], [p for p in trained if p in branches]
