"""Passes over the training split: steps run from Python, or captured once and replayed.

Either way nothing is copied from the device before the end of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from bayesagg_pyro.diagnostics import Recorder
from experiments import processes
from experiments.benchmark import Batch, Split
from experiments.errors import SettingsError
from experiments.methods import Capture, Method
from experiments.scores.calibration import observed
from experiments.settings import Settings
from experiments.training.graphs import Call, CompileBackend, CudaBackend, TwinBackend


@dataclass(frozen=True)
class Pass:
    """One pass over the training split.

    Attributes:
        losses: Mean loss of every task over its targets, heads in order; None without any.
        effective_tasks: Mean effective number of tasks; None for methods without weights.
        steps: Number of steps.
    """

    losses: list[float | None]
    effective_tasks: float | None
    steps: int


class FixedSplit(Split, Protocol):
    """A split that can also give batches of few fixed shapes, gathered on the device."""

    def fixed_batches(
        self, batch_size: int, generator: torch.Generator
    ) -> Sequence[tuple[Hashable, Tensor]]:
        """A pass: for every batch its shape and its row numbers ``[B]``, on the device."""

    def gather(self, shape: Hashable, rows: Tensor) -> Batch:
        """The batch of these rows; the same ``shape`` gives tensors of the same shapes."""


class Step:
    """One step of training; what it sums up stays on the device."""

    def __init__(
        self,
        method: Method,
        optimizer: Optimizer,
        heads: Sequence[str],
        clip_norm: float | None = None,
    ) -> None:
        self._method, self._optimizer = method, optimizer
        self._heads, self._clip_norm = list(heads), clip_norm
        self._sums: Tensor | None = None
        self._counts: Tensor | None = None
        self._effective: Tensor | None = None
        self._weighted = False
        self.loss: Tensor | None = None

    def start(self) -> None:
        """Begin a pass; sums keep their place."""
        for total in (self._sums, self._counts, self._effective):
            if total is not None:
                total.zero_()
        self._weighted = False

    def __call__(self, batch: Batch, *, in_place: bool = False) -> None:
        """Gradients, optimiser, sums.

        Args:
            batch: The batch.
            in_place: Zero gradients where they lie instead of releasing them.
        """
        self._optimizer.zero_grad(set_to_none=not in_place)
        losses = self._method.backward(batch.inputs, batch.targets)
        processes.add_up(p.grad for p in self._method.divided if p.grad is not None)
        if self._clip_norm is not None:
            parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
            clip_grad_norm_(parameters, self._clip_norm)
        self._optimizer.step()
        flat = torch.cat([losses[name].reshape(-1) for name in self._heads])
        counts = torch.cat([_counts(batch.targets[name]) for name in self._heads]).to(flat)
        if self._sums is None or self._counts is None or self._effective is None:
            self._sums, self._counts = torch.zeros_like(flat), torch.zeros_like(flat).double()
            self._effective = torch.zeros(2, device=flat.device)
        self._sums.add_(torch.where(counts > 0, flat * counts, 0.0))
        self._counts.add_(counts)
        self.loss = torch.where(counts > 0, flat, torch.nan).nanmean()
        effective = self._method.effective_tasks()
        if effective is not None:
            found = torch.as_tensor(effective, dtype=torch.float32, device=flat.device)
            there = ~found.isnan()  # NaN: no target at all
            self._effective.add_(torch.stack([torch.where(there, found, 0.0), there.float()]))
            self._weighted = True

    def read(self, steps: int) -> Pass:
        """What was summed up; waits for the device."""
        if self._sums is None or self._counts is None or self._effective is None:
            raise AssertionError("a benchmark's training split is never empty")
        sums, counts = self._sums.double().tolist(), self._counts.tolist()
        mean = [total / n if n else None for total, n in zip(sums, counts, strict=True)]
        total, weighted = self._effective.tolist()
        effective = total / weighted if self._weighted and weighted else None
        return Pass(mean, effective, steps)


def _counts(target: Any) -> Tensor:
    """How many examples have a target of each task, ``[tasks]``.

    Args:
        target: ``[B]`` or ``[B, tasks]``, NaN (a class: below 0) where missing; or a tuple of these
            and a mask.
    """
    values, mask = (target, None) if isinstance(target, Tensor) else target[:2]
    there = observed(values) if mask is None else mask
    return there.reshape(len(there), -1).sum(0)


class Stepper:
    """Runs passes, step by step or through a backend of graphs.

    With a backend, the rows of a batch are copied into a buffer of its shape; the step gathers them
    and does the rest. It first runs from Python a few times, then is captured and replayed. A shape
    that turns up too rarely in a pass (the last, shorter batch) is never captured, and a step that
    ``recorder`` wants runs from Python.
    """

    def __init__(
        self, step: Step, method: Method, optimizer: Optimizer, backend: TwinBackend | None
    ):
        self._step, self._method, self._optimizer = step, method, optimizer
        self._backend = backend
        self._buffers: dict[Hashable, Tensor] = {}
        self._ran: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, Call] = {}
        self.recorder: Recorder | None = None

    def run(
        self,
        split: Split,
        batch_size: int,
        order: torch.Generator,
        report: Callable[[Tensor], None],
    ) -> Pass:
        """One pass over ``split`` in the order that ``order`` draws."""
        self._step.start()
        if self._backend is None:
            steps = 0
            for batch in split.batches(batch_size, order):
                self._step(batch)
                steps += 1
                self._report(report)
            return self._step.read(steps)
        fixed = cast(FixedSplit, split)
        if self._method.capture is Capture.EPOCH:
            self.forget()
        batches = fixed.fixed_batches(batch_size, order)
        with self._backend.active():
            for shape, rows in batches:
                self._one(self._backend, fixed, shape, rows)
                self._report(report)
        return self._step.read(len(batches))

    def forget(self) -> None:
        """Drop what was captured, and the gradients: their state is about to move."""
        self._graphs.clear()
        self._ran.clear()
        self._optimizer.zero_grad(set_to_none=True)

    def _one(self, backend: TwinBackend, split: FixedSplit, shape: Hashable, rows: Tensor) -> None:
        if shape not in self._buffers:
            self._buffers[shape] = torch.empty_like(rows)
        buffer = self._buffers[shape].copy_(rows)

        def step() -> None:
            self._step(split.gather(shape, buffer), in_place=True)

        graph = self._graphs.get(shape)
        recorder = self.recorder
        if recorder is not None and recorder.wants():
            step()
        elif graph is not None:
            seen = None if recorder is None else recorder.step
            graph()
            if recorder is not None and recorder.step == seen:
                recorder.skip()
        elif self._ran.get(shape, 0) < backend.warm_up:
            self._ran[shape] = self._ran.get(shape, 0) + 1
            step()
        else:
            self._graphs[shape] = backend.capture(step)
            self._graphs[shape]()

    def _report(self, report: Callable[[Tensor], None]) -> None:
        if self._step.loss is not None:
            report(self._step.loss)


def backend_for(
    settings: Settings, device: torch.device, method: Method, split: Split
) -> TwinBackend | None:
    """The backend that the settings ask for; None for steps from Python.

    Raises:
        SettingsError: Graphs are insisted on where there can be none.
    """
    wanted = settings.graph
    if wanted == "off" or (wanted == "auto" and device.type != "cuda"):
        return None
    lacking = None
    if not hasattr(split, "fixed_batches"):
        lacking = "this benchmark has no batches of fixed shapes"
    elif method.capture is Capture.NEVER:
        lacking = f"method {method.name} with these options cannot be captured"
    elif wanted == "on" and device.type != "cuda":
        lacking = f"a CUDA graph needs a CUDA device, not {device}"
    if lacking is not None:
        if wanted == "auto":
            return None
        raise SettingsError(f"graph = {wanted!r} cannot work: {lacking}; give auto or off")
    if wanted == "compile":
        return CompileBackend(method.backbone)
    return TwinBackend() if wanted == "twin" else CudaBackend(device)
