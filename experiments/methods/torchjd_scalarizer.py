"""Scalarizations of TorchJD: on batches without targets of some tasks, and as plain values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from bayesagg_pyro.aggregation._torchjd_state import load_state, read_state


def scalarize(scalarizer: Any, losses: Tensor, present: Tensor) -> Tensor:
    """What the scalarization makes of the losses that are there, as if it knew no others.

    Its parameters, settings and memory are cut to these tasks; parameters stay on the graph.

    Args:
        scalarizer: Of TorchJD, for ``K`` losses.
        losses: ``[K]``, with their graph.
        present: ``[K]``, at least one.
    """
    inner = copy.copy(scalarizer)
    held = {**vars(scalarizer), **scalarizer._parameters, **scalarizer._buffers}
    inner.__dict__ = {**vars(scalarizer), "_parameters": {}, "_buffers": {}}
    for name, value in held.items():
        if isinstance(value, Tensor) and value.shape == present.shape:
            inner.__dict__[name] = value[present.to(value.device)]
    if "_previous_averages" in held:
        inner._previous_averages = [average[present] for average in held["_previous_averages"]]
    total: Tensor = inner(losses[present])
    _remember(scalarizer, losses.detach(), present)
    return total


def recall(scalarizer: Any, losses: Tensor) -> None:
    """Put a task's first loss in an epoch in the place of those that its earlier batches lacked."""
    total = getattr(scalarizer, "_loss_sum", None)
    if total is not None:
        usual = scalarizer._n_batches * losses.detach()
        scalarizer._loss_sum = torch.where(total.isnan(), usual, total)


def _remember(scalarizer: Any, losses: Tensor, present: Tensor) -> None:
    """DWA's sums: a batch without the task counts as one of its mean loss so far (NaN: unknown)."""
    if not hasattr(scalarizer, "_loss_sum"):
        if hasattr(scalarizer, "_prev_losses"):  # FAMO; see `update` for the others
            scalarizer._prev_losses = torch.where(present, losses, 1.0)
        return
    batches, total = scalarizer._n_batches, scalarizer._loss_sum
    if total is None:
        total = torch.full_like(losses, torch.nan)
    usual = total * ((batches + 1) / max(batches, 1))
    added = torch.where(total.isnan(), (batches + 1) * losses, total + losses)
    scalarizer._loss_sum = torch.where(present, added, usual)
    scalarizer._n_batches = batches + 1


def roll_epoch(scalarizer: Any) -> None:
    """DWA's end of an epoch; a task without targets in it keeps its average."""
    total = scalarizer._loss_sum
    if total is not None:
        before = scalarizer._previous_averages[-1:] or [torch.ones_like(total)]
        scalarizer._loss_sum = torch.where(total.isnan(), before[0] * scalarizer._n_batches, total)
    scalarizer.step()


def update(scalarizer: Any, losses: Tensor, present: Tensor | None) -> None:
    """FAMO's look back; logits of tasks that are not present stay as they are.

    Those tasks are given the weighted mean of the others' changes, which leaves the gradient of the
    softmax as it is without them, up to a factor that Adam does not see.
    """
    if present is None or bool(present.all()):
        scalarizer.update(losses)
        return
    kept = scalarizer._w.detach().clone()
    shifted = (scalarizer._prev_losses - scalarizer.min_losses).log() - (
        losses.detach() - scalarizer.min_losses
    ).log()
    share = torch.where(present, kept, -torch.inf).softmax(0)
    usual = (share * torch.where(present, shifted, 0.0)).sum()
    before = scalarizer._prev_losses - scalarizer.min_losses
    same = scalarizer.min_losses + before * (-usual).exp()
    scalarizer.update(torch.where(present, losses, same))
    with torch.no_grad():
        scalarizer._w.copy_(torch.where(present, scalarizer._w, kept))


def read_scalarizer(scalarizer: Any) -> dict[str, Any]:
    """Parameters, memory, and the optimiser that FAMO keeps to itself."""
    optimizer = getattr(scalarizer, "_optimizer", None)
    return {
        "module": scalarizer.state_dict(),
        "memory": read_state(scalarizer),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
    }


def load_scalarizer(scalarizer: Any, state: Mapping[str, Any]) -> None:
    """Restore what :func:`read_scalarizer` gave."""
    scalarizer.load_state_dict(state["module"])
    load_state(scalarizer, state["memory"])
    if state["optimizer"] is not None:
        scalarizer._optimizer = Adam(
            [scalarizer._w], lr=scalarizer.lr, weight_decay=scalarizer.weight_decay
        )
        scalarizer._optimizer.load_state_dict(state["optimizer"])
