"""Several processes of one run: ``--nproc 2``, or ``torchrun`` before the command.

Each draws the same batches and lets the network see its own examples of every one. The features of
all are put together, so that methods see whole batches. The first process writes files and talks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesagg_pyro.engine.peers import exchange
from experiments.processes.norms import share_norms
from experiments.settings import resolve_device
from models.graphs import PaddedGraphs


def count() -> int:
    """How many share the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def first() -> bool:
    """Whether this is the one that writes."""
    return rank() == 0


def rank() -> int:
    """The place of this one among them."""
    return dist.get_rank() if dist.is_initialized() else 0


def device(name: str) -> torch.device:
    """As :func:`resolve_device`; of several GPUs each process takes its own."""
    found = resolve_device(name)
    if count() > 1 and found.type == "cuda" and found.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())))
    return found


@contextmanager
def joined(name: str) -> Iterator[None]:
    """The group that this process was started for; nothing where it is alone.

    Raises:
        StateError: Another one of the processes has ended.
    """
    if not started():
        yield
        return
    cuda = resolve_device(name).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        with exchange():
            yield
    finally:
        dist.destroy_process_group()


# -- starting them --------------------------------------------------------------------------------


def started() -> bool:
    """Whether this process was started as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def start(number: int) -> int:
    """Give the command that this process was given to so many others; the exit status.

    Ctrl-C is handed on to all of them, and if one fails the others are ended.
    """
    # Slow to import, and wanted here alone.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // number)))
    config = LaunchConfig(
        1, 1, number, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
    )
    try:
        elastic_launch(config, sys.executable)("-m", "experiments", *sys.argv[1:])
    except ChildFailedError as error:
        status: int = error.get_first_failure()[1].exitcode
        return status
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


# -- dividing batches -----------------------------------------------------------------------------


def divide(network: nn.Module) -> None:
    """Let a network in training see this process's examples alone, and give the features of all.

    Losses, and gradients with respect to the features, are those of the whole batch then, alike in
    all processes. Gradients of the network's parameters are parts, which :func:`add_up` puts
    together.
    """
    share_norms(network)
    taken: list[tuple[Tensor, int]] = []

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not module.training:
            return None
        mine, rows, size = own(inputs[0])
        taken.append((rows, size))
        return (mine, *inputs[1:])

    def after(module: nn.Module, inputs: Any, features: Any) -> Any:
        if not module.training:
            return features
        which = taken.pop()
        if isinstance(features, Tensor):
            return _OfAll.apply(features, *which)
        return {name: _OfAll.apply(part, *which) for name, part in features.items()}

    network.register_forward_pre_hook(before)
    network.register_forward_hook(after)


class _OfAll(torch.autograd.Function):
    """Features of all processes' examples, in the order of the batch."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, rows: Tensor, size: int) -> Tensor:
        """Those of all ``size`` examples, of which the ``rows`` are here: one row each, or pixels.

        Where there is no such row, features are of an example that does not count.
        """
        each = features.unflatten(0, (max(1, len(rows)), -1))
        ctx.rows, ctx.size, ctx.shape = rows, size, each.shape
        whole = features.new_zeros(size, *each.shape[1:])
        whole[rows] = each[: len(rows)]
        dist.all_reduce(whole)  # others add zeros
        return whole.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Of those rows."""
        found = gradients[0].new_zeros(ctx.shape)
        found[: len(ctx.rows)] = gradients[0].unflatten(0, (ctx.size, -1))[ctx.rows]
        return found.flatten(0, 1), None, None


def add_up(parts: Iterable[Tensor]) -> None:
    """Put the sums over all processes in the place of tensors, in one exchange."""
    tensors = list(parts)
    if count() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def make_equal(tensors: Iterable[Tensor]) -> None:
    """Give every process the first one's values, which rounding on unlike devices may move."""
    if count() > 1:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def any_of(flag: bool) -> bool:
    """Whether a flag is set in some process."""
    if count() == 1:
        return flag
    place = "cuda" if dist.get_backend() == "nccl" else "cpu"
    number = torch.tensor(int(flag), device=place)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return bool(number)


def own(inputs: Any) -> tuple[Any, Tensor, int]:
    """This process's examples of a batch: every so many-th, so that large ones are spread.

    Args:
        inputs: Examples first, or groups of padded graphs one after the other.

    Returns:
        Those inputs, which of the examples they are, and how many there are in all. A process
        without any is given one all the same, since there are networks that do not take none.
    """
    place, step = rank(), count()
    if isinstance(inputs, Tensor):
        rows = torch.arange(len(inputs))[place::step].to(inputs.device)
        return inputs[rows if len(rows) else slice(1)], rows, len(inputs)
    graphs: Sequence[PaddedGraphs] = inputs
    parts, places, start = [], [], 0
    for group in graphs:
        size = len(group.atoms)
        rows = torch.arange(size)[(place - start) % step :: step]
        parts += [_graphs(group, rows)] if len(rows) else []
        places.append(start + rows)
        start += size
    parts = parts or [_graphs(graphs[0], torch.zeros(1, dtype=torch.long))]
    return parts, torch.cat(places).to(graphs[0].atoms.device), start


def own_targets(targets: dict[str, Any], rows: Tensor, size: int) -> dict[str, Any]:
    """Targets of some of the examples.

    Args:
        targets: ``{head: rows}``, as many for each example; in tuples with their masks.
        rows: Which examples.
        size: How many there are in all.
    """

    def of(values: Any) -> Any:
        if values is None:
            return None
        if isinstance(values, tuple):
            return tuple(map(of, values))
        each = values.reshape(size, len(values) // size, *values.shape[1:])
        return each[rows].flatten(0, 1)

    return {name: of(values) for name, values in targets.items()}


def _graphs(group: PaddedGraphs, rows: Tensor) -> PaddedGraphs:
    def of(part: Tensor) -> Tensor:
        return part[rows.to(part.device)]

    return PaddedGraphs(**{name: of(part) for name, part in vars(group).items()})
