"""Single-task training (STL): one network for each task, none shared."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro.heads import Head
from experiments.methods.base import MethodOptions
from experiments.methods.branches import keep_branch, read_by
from experiments.methods.network import mean_losses, reported
from experiments.methods.weighted import WeightedLosses


class SingleTask(WeightedLosses):
    """Each task has a backbone of its own, and descends its own loss in it.

    One run gives the single-task row of a comparison, at the cost of as many networks as there are
    tasks; outputs that are one task together (``Benchmark.joint``) share one. All begin with the
    same weights and see the same batches; since they share no parameter, each is trained exactly as
    if it were alone, but for what the run shares: the epoch that validation selects, and a learning
    rate that waits for the mean score. Benchmarks with an option for one task alone (``--only``)
    select and slow down by that task.
    """

    name, title = "stl", "STL"
    wants = ("joint",)

    def __init__(
        self,
        backbone: nn.Module,
        heads: Mapping[str, Head],
        options: MethodOptions,
        *,
        joint: Collection[str] = (),
    ) -> None:
        self._alone = [
            (name, columns)
            for name, head in heads.items()
            for columns in (
                [slice(0, head.tasks)]
                if name in joint
                else [slice(task, task + 1) for task in range(head.tasks)]
            )
        ]
        networks = [backbone, *(copy.deepcopy(backbone) for _ in self._alone[1:])]
        for (name, _), network in zip(self._alone, networks, strict=True):
            keep_branch(network, name)
        super().__init__(nn.ModuleList(networks), heads, options)

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """One forward and backward pass of every network."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.by_name}
        seen: dict[str, Tensor | None] = {}
        for name, columns, features in self._features(inputs):
            own, seen[name] = mean_losses({name: self.by_name[name]}, features, targets)
            found[name].append(own[name][columns])
        losses = {name: torch.cat(values) for name, values in found.items()}
        self._require_finite(losses)
        self.total(torch.cat(list(losses.values())), None).backward()
        parts = [reported({name: loss}, seen[name]) for name, loss in losses.items()]
        return {name: loss for part in parts for name, loss in part.items()}

    def total(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """Σ ℓ_k, whose terms share nothing."""
        return losses.sum()

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """Each task's outputs, from its own network."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.by_name}
        for name, columns, features in self._features(inputs):
            head = self.by_name[name]
            outputs = head(features)
            found[name].append(outputs[:, columns] if head.tasks > 1 else outputs)
        return {name: torch.cat(outputs, 1) for name, outputs in found.items()}

    def _features(self, inputs: Any) -> Iterator[tuple[str, slice, Tensor]]:
        """Head, tasks in it, and the features of their network, in the order of the tasks."""
        assert isinstance(self.backbone, nn.ModuleList)
        for (name, columns), backbone in zip(self._alone, self.backbone, strict=True):
            yield name, columns, read_by(name, backbone(inputs))
