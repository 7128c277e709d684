"""Linear scalarisation: the sum of the tasks' losses, the baseline of the literature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.diagnostics import Recorder
from bayesagg_pyro.heads import Head
from experiments.methods.base import Level, Method, MethodOptions, Scale

__all__ = ["LinearScalarization"]


class LinearScalarization(Method):
    """Descend the plain sum of all tasks' mean losses (LS).

    This is the loop that anybody would write by hand, and nothing more, so that its speed and its
    result can serve as the reference.
    """

    name: ClassVar[str] = "ls"
    title: ClassVar[str] = "LS"
    scale: ClassVar[Scale] = Scale.SUM
    level: ClassVar[Level] = Level.LOSSES

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: MethodOptions
    ) -> None:
        self.backbone = backbone
        self.heads = nn.ModuleDict(heads)
        self._by_name = dict(heads)
        self._recorder: Recorder | None = None

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One ordinary forward and backward pass."""
        features = self.backbone(inputs)
        losses = {
            name: head.loss(head(features), targets[name]).mean(0)
            for name, head in self._by_name.items()
        }
        torch.cat(list(losses.values())).sum().backward()
        detached = {name: loss.detach() for name, loss in losses.items()}
        if self._recorder is not None:
            self._recorder.see(features, targets, detached)
        return detached

    def watch(
        self, path: Path, every: int, start: int, inputs: Any, targets: dict[str, Tensor]
    ) -> Recorder:
        """Record losses, features and norms of the heads."""
        self._recorder = Recorder(self._by_name, path, every=every, start=start)
        return self._recorder

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """The heads' outputs."""
        features = self.backbone(inputs)
        return {name: head(features) for name, head in self._by_name.items()}

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, then heads."""
        return chain(self.backbone.parameters(), self.heads.parameters())

    def train(self, mode: bool = True) -> None:
        """Switch both between training and evaluation."""
        self.backbone.train(mode)
        self.heads.train(mode)

    def state_dict(self) -> dict[str, Any]:
        """State of backbone and heads."""
        return {"backbone": self.backbone.state_dict(), "heads": self.heads.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.backbone.load_state_dict(state["backbone"])
        self.heads.load_state_dict(state["heads"])
