"""Processes of one gloo group on this machine, as torchrun would start them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.forked import FORKED

__all__ = ["run", "start"]


def run(work: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """What `work(rank, *args)` gives in each process, float64 being the default there.

    Args:
        work: a function of a module.
        world: number of processes.
        args: what can be pickled.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = start(work, world, folder, *args)
        while not context.join():
            pass
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world)]


def start(work: Callable[..., Any], world: int, folder: str, *args: Any) -> mp.ProcessContext:
    """The processes; `folder` takes what each gives."""
    given = _worker, (world, folder, work, args), world
    context: mp.ProcessContext = mp.start_processes(
        *given, join=False, start_method=FORKED.get_start_method()
    )
    return context


def _worker(rank: int, world: int, folder: str, work: Callable[..., Any], args: Any) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    found = work(rank, *args)
    torch.save(found, Path(folder, f"{rank}.pt"))
    if dist.is_initialized():
        dist.destroy_process_group()
