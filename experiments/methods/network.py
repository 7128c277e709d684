"""One backbone with heads: what most methods train, and all that they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bayesagg_pyro.diagnostics import Recorder
from bayesagg_pyro.heads import Head
from experiments import processes
from experiments.errors import DivergenceError
from experiments.methods.base import Capture, Method, MethodOptions
from experiments.methods.branches import Features, read_by
from experiments.methods.predictive import calibration, plug_in


class Network(Method):
    """A method that predicts with the heads' outputs on the backbone's features.

    Attributes:
        kept: What else has state, by its name in a checkpoint: generators, parameters, and anything
            with ``state_dict``.
    """

    def __init__(
        self, backbone: nn.Module, heads: Mapping[str, Head], options: MethodOptions
    ) -> None:
        self.backbone = backbone
        self.heads = nn.ModuleDict(heads)
        self.options = options
        self.by_name = dict(heads)
        self.tasks = task_names(heads)
        self._recorder: Recorder | None = None
        self._scales: dict[str, Tensor] = {}
        self.kept: dict[str, Any] = {}

    def predict(self, inputs: Any) -> dict[str, Tensor]:
        """The heads' outputs."""
        features = self.backbone(inputs)
        return {name: head(read_by(name, features)) for name, head in self.by_name.items()}

    def calibrate(self, batches: Iterable[tuple[Any, dict[str, Tensor]]] | None) -> None:
        """Noise of regression heads and temperatures of classes, of highest likelihood."""
        shown = ((self.predict(inputs), targets) for inputs, targets in batches or ())
        self._scales = calibration(self.likelihoods(), shown) if batches is not None else {}

    def predictive(self, inputs: Any) -> dict[str, Any]:
        """The heads' likelihoods at the point predictions, as wide as was fitted."""
        outputs = self.predict(inputs)
        return {
            name: plug_in(head, outputs[name], self._scales.get(name))
            for name, head in self.likelihoods().items()
        }

    def likelihoods(self) -> Mapping[str, Head]:
        """The heads whose likelihoods predictions are of."""
        return self.by_name

    def distribute(self) -> None:
        """Divide batches between the processes at the backbones; all else sees whole ones."""
        several = isinstance(self.backbone, nn.ModuleList)
        for backbone in self.backbone.children() if several else [self.backbone]:
            processes.divide(backbone)
        self.divided = list(self.backbone.parameters())
        self.capture = Capture.NEVER

    def parameters(self) -> Iterator[Parameter]:
        """Backbone, then heads."""
        return chain(self.backbone.parameters(), self.heads.parameters())

    def train(self, mode: bool = True) -> None:
        """Switch both between training and evaluation."""
        self.backbone.train(mode)
        self.heads.train(mode)

    def state_dict(self) -> dict[str, Any]:
        """State of backbone and heads, and of what is ``kept`` besides."""
        parts = {"backbone": self.backbone, "heads": self.heads, **self.kept}
        return {name: _state_of(part) for name, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        parts = {"backbone": self.backbone, "heads": self.heads, **self.kept}
        for name, part in parts.items():
            _restore(part, state[name])

    def losses(
        self, features: Features, targets: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """As :func:`mean_losses`.

        Raises:
            DivergenceError: One is not finite. On a GPU nobody looks, since that would wait for
                the device; the trainer looks at the end of the epoch.
        """
        losses, present = mean_losses(self.by_name, features, targets)
        if next(iter(losses.values())).device.type == "cpu":
            self._require_finite(losses)
        return losses, present

    def done(
        self,
        features: Features,
        targets: dict[str, Tensor],
        losses: Mapping[str, Tensor],
        present: Tensor | None,
    ) -> dict[str, Tensor]:
        """The losses as reported, once a recorder has seen the step if there is one."""
        detached = reported(losses, present)
        if self._recorder is not None:
            self._recorder.see(features, targets, detached)
        return detached

    def watch(
        self, path: Path, every: int, start: int, inputs: Any, targets: dict[str, Tensor]
    ) -> Recorder:
        """Record losses, features and norms of the heads.

        Raises:
            SettingsError: There are several backbones, and a recorder looks at the features of one.
        """
        if isinstance(self.backbone, nn.ModuleList):
            return super().watch(path, every, start, inputs, targets)
        self._recorder = Recorder(self.by_name, path, every=every, start=start)
        return self._recorder

    def _require_finite(self, losses: Mapping[str, Tensor]) -> None:
        values = torch.cat([loss.detach() for loss in losses.values()])
        finite = values.isfinite()
        if not finite.all():
            task = int((~finite).nonzero()[0])
            raise DivergenceError(
                f"training loss of task {self.tasks[task]} is {float(values[task])} before a step: "
                "training has diverged, or a target is bad; lower --lr, or look at the data"
            )


def _state_of(part: Any) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, Tensor) else part.state_dict()


@torch.no_grad()
def _restore(part: Any, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, Tensor):
        part.copy_(state)
    else:
        part.load_state_dict(state)


def set_biases(weight: Tensor, constants: Tensor) -> None:
    """Let outputs start at constants, those of a task with several at its first, the mean.

    Args:
        weight: ``[..., tasks · outputs, D]``, the bias last.
        constants: ``[tasks]``, or one for each output.
    """
    wanted = constants.flatten().to(weight)
    weight.data[..., -1].unflatten(-1, (len(wanted), -1))[..., 0] = wanted


def reported(losses: Mapping[str, Tensor], present: Tensor | None) -> dict[str, Tensor]:
    """Losses without their graph; NaN for tasks without any target, which have none."""
    detached = {name: loss.detach() for name, loss in losses.items()}
    if present is None:
        return detached
    there = present.split([len(loss) for loss in losses.values()])
    return {
        name: torch.where(seen, loss, torch.nan)
        for (name, loss), seen in zip(detached.items(), there, strict=True)
    }


def mean_losses(
    heads: Mapping[str, Head], features: Features, targets: Mapping[str, Any]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Each head's mean loss over observed examples, and which tasks have any.

    Args:
        heads: The heads.
        features: ``[B, d]``, or ``{head: [B, d]}``.
        targets: ``[B, tasks]`` for each head; ``(values, mask)`` or ``(values, mask, weight)``
            where some are missing or weighted.

    Returns:
        ``{head: [tasks]}``, 0 without a gradient for a task without any target; and ``[K]``, heads
        in order, True where a task has one, or None where none can be missing.
    """
    losses: dict[str, Tensor] = {}
    seen: list[Tensor] = []
    holes = False
    for name, head in heads.items():
        target, own = targets[name], read_by(name, features)
        if isinstance(target, Tensor) and head.missing == "error":
            losses[name] = head.loss(head(own), target).mean(0)
            seen.append(torch.ones(head.tasks, dtype=torch.bool, device=own.device))
        else:
            observed = head.parse_targets(target, len(own), validate=own.device.type == "cpu")
            there = observed.counts() > 0
            mean = observed.mean(head.loss(head(own), observed.values))
            losses[name] = torch.where(there, mean, 0.0)
            seen.append(there)
            holes = holes or observed.mask is not None
    return losses, torch.cat(seen) if holes else None


def task_names(heads: Mapping[str, Head]) -> tuple[str, ...]:
    """``head`` for the one task of a head, ``head[i]`` for several, heads in their order."""
    return tuple(
        name if head.tasks == 1 else f"{name}[{task}]"
        for name, head in heads.items()
        for task in range(head.tasks)
    )
