"""Watching training: one record every n steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesagg_pyro._settings import integers
from bayesagg_pyro.diagnostics import _features, _lines
from bayesagg_pyro.diagnostics._row import block_names, row_of, task_names
from bayesagg_pyro.engine import BayesAgg
from bayesagg_pyro.engine.batch import Batch, Group, as_one
from bayesagg_pyro.engine.info import Stages, StepInfo
from bayesagg_pyro.engine.reading import Features
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.heads import Head
from bayesagg_pyro.posteriors import Posterior
from bayesagg_pyro.targets import RawTargets

#: Present features [N, d] of training examples, or {name: such}, and their targets.
Fresh = Callable[[], tuple[Features, Mapping[str, RawTargets]]]


class Recorder:
    """Writes one record every n training steps of an engine, at no cost in between.

    A step that is recorded keeps its gradient distribution and posteriors, computes the light
    diagnostics from them, and copies their numbers from the device once. Other steps only count.
    Records are taken of the first step and of every `every`-th after it.

        recorder = diagnostics.Recorder(mtl, "record.jsonl", every=100)
        ...                                    # train
        table = diagnostics.read("record.jsonl")

    Args:
        mtl: the engine; the recorder takes the place of its `observer`. Or {name: head}, for
            training without an engine, which then calls `see` at each step.
        path: of the file of JSON lines. Records from `start` on that are already in it are dropped.
        every: n, in training steps.
        start: steps done before, when a run is resumed.
        fresh: gives present features of training examples with their targets. Each record then
            tells how stale the priors are; it costs that forward pass.
        base: {name: distribution} that posteriors of fresh features start from; needed with
            `fresh`.

    Raises:
        SettingError: for numbers outside their range, `fresh` without `base`, or a file that is
            not a recorder's.
        OSError: if the file cannot be written.

    Attributes:
        step: training steps seen.
        notes: columns to add to each record, such as {"epoch": 3}.
    """

    def __init__(
        self,
        mtl: BayesAgg | Mapping[str, Head],
        path: str | os.PathLike[str],
        *,
        every: int = 100,
        start: int = 0,
        fresh: Fresh | None = None,
        base: Mapping[str, Posterior] | None = None,
    ) -> None:
        integers(every=every)
        integers(0, start=start)
        self._mtl = mtl if isinstance(mtl, BayesAgg) else None
        heads: Any = mtl.heads.items() if isinstance(mtl, BayesAgg) else mtl.items()
        self._heads: dict[str, Head] = dict(heads)
        if fresh is not None and (base is None or set(base) != set(self._heads)):
            raise SettingError(
                "fresh features need base={name: distribution} for the heads "
                f"{sorted(self._heads)}, such as priors.isotropic(head, 1.0)"
            )
        self.path = Path(path)
        self.every = every
        self.step = start
        self.notes: dict[str, Any] = {}
        self._fresh = fresh
        self._base = base or {}
        _lines.truncate(self.path, start)
        self.path.touch()
        if self._mtl is not None:
            self._mtl.observer = self

    def wants(self) -> bool:
        """Whether the next training step will be recorded.

        Training that replays a captured step looks here, runs such a step eagerly, and counts the
        others with `skip`.
        """
        return self.step % self.every == 0

    def skip(self, steps: int = 1) -> None:
        """Count training steps that did not pass through the engine's `backward`."""
        self.step += steps

    def passed(self, info: StepInfo) -> None:
        """Record this step if it is due, and count it; the engine calls this."""
        if self.wants() and info.stages is not None:
            row: dict[str, Any] = {"step": self.step, "bayesian": info.bayesian, **self.notes}
            row.update(row_of(info, self._heads))
            if self._fresh is not None and info.stages.priors:
                row.update(self._stale(info.stages))
            _lines.append(self.path, row)
        self.step += 1

    def see(
        self, features: Features, targets: Mapping[str, RawTargets], losses: Mapping[str, Tensor]
    ) -> None:
        """Record a training step that was made without an engine.

        Args:
            features: [B, d], or {name: such} where heads read different ones.
            targets: {name: [B, tasks]}, or (values, mask).
            losses: {name: [tasks]}.
        """
        stages = None
        if self.wants():
            own = {name: _read_by(name, features) for name in self._heads}
            groups = []
            for tensor in {id(tensor): tensor for tensor in own.values()}.values():
                parsed = {
                    name: head.parse_targets(targets[name], len(tensor), validate=False)
                    if name in targets
                    else head.unlabelled(len(tensor))
                    for name, head in self._heads.items()
                    if own[name] is tensor
                }
                groups.append(Group(tensor.detach(), parsed))
            rows, observed, read_by = as_one(Batch(tuple(groups)), self._heads)
            stages = Stages(rows, observed, rows=read_by)
        self.passed(StepInfo(bayesian=False, losses=dict(losses), stages=stages))

    def close(self) -> None:
        """Stop watching; the file stays."""
        if self._mtl is not None and self._mtl.observer is self:
            self._mtl.observer = None

    @torch.no_grad()
    def _stale(self, stages: Stages) -> dict[str, float]:
        assert self._fresh is not None
        assert self._mtl is not None
        features, targets = self._fresh()
        row: dict[str, float] = {}
        for name, head in self._heads.items():
            found = _features.staleness(
                head,
                self._mtl.schemes[name],
                stages.priors[name],
                self._base[name],
                _read_by(name, features),
                targets[name],
            )
            for quantity, names, values in (
                ("stale_distance", block_names(name, head), found.distance),
                ("stale_cost", task_names({name: head}), found.cost),
            ):
                for owner, value in zip(names, values.tolist(), strict=True):
                    row[f"{quantity}/{owner}"] = value
        return row


def _read_by(name: str, features: Features) -> Tensor:
    return features if isinstance(features, Tensor) else features[name]
