"""Several processes of one run: ``torchrun --nproc-per-node 2 -m experiments qm9 --out runs/two``.

Each draws the same batches and takes its own examples of every one; the engine puts features
together. The first one writes files and talks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from experiments.settings import resolve_device
from models.graphs import PaddedGraphs

__all__ = ["count", "device", "first", "joined", "share"]


def count() -> int:
    """How many share the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def first() -> bool:
    """Whether this is the one that writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def device(name: str) -> torch.device:
    """As :func:`resolve_device`; of several GPUs each process takes its own."""
    found = resolve_device(name)
    if count() > 1 and found.type == "cuda" and found.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())))
    return found


@contextmanager
def joined(name: str) -> Iterator[None]:
    """The group that ``torchrun`` started this process for; nothing where it did not.

    Args:
        name: Of the device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    cuda = resolve_device(name).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(inputs: Any, targets: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """This process's examples of a batch: every so many-th, so that large ones are spread.

    Args:
        inputs: Examples first, or groups of padded graphs one after the other.
        targets: ``{head: rows}``, as many for each example.

    Returns:
        The same of those examples. Inputs may be more than targets, which then tell how many count.
    """
    if count() == 1:
        return inputs, targets
    if isinstance(inputs, Tensor):
        own = torch.arange(len(inputs))[dist.get_rank() :: count()]
        return _rows(inputs, own), _part(targets, own, len(inputs))
    graphs: Sequence[PaddedGraphs] = inputs
    parts, places, start = [], [], 0
    for group in graphs:
        size = len(group.atoms)
        own = torch.arange(size)[(dist.get_rank() - start) % count() :: count()]
        parts += [_graphs(group, own)] if len(own) else []
        places.append(start + own)
        start += size
    if not parts:  # no network takes none: one, whose features are left out
        parts = [_graphs(graphs[0], torch.zeros(1, dtype=torch.long))]
    return parts, _part(targets, torch.cat(places), start)


def _part(targets: dict[str, Any], own: Tensor, size: int) -> dict[str, Any]:
    def of(values: Any) -> Any:
        if values is None:
            return None
        if isinstance(values, tuple):
            return tuple(map(of, values))
        return _rows(values.reshape(size, len(values) // size, *values.shape[1:]), own).flatten(
            0, 1
        )

    return {name: of(values) for name, values in targets.items()}


def _graphs(group: PaddedGraphs, own: Tensor) -> PaddedGraphs:
    return PaddedGraphs(**{name: _rows(part, own) for name, part in vars(group).items()})


def _rows(tensor: Tensor, own: Tensor) -> Tensor:
    return tensor.index_select(0, own.to(tensor.device))
