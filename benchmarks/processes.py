"""A step in two processes of one thread against one process.

``python -m benchmarks.processes``. The batch is shared out; head stages see the whole of it in both
processes. A step is taken apart where the backbone ends: its forward pass, then what is exchanged
and the head stage, then its backward pass with the average of its gradients.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from benchmarks.network import random_groups
from models import CifarNetwork, MessagePassing

PARTS = ("forward", "exchange and head stage", "backward")
WORLD = 2


def run(case: str = "qm9", rounds: int = 20) -> dict[str, Any]:
    """Median milliseconds of each part, in one process and in two, measured in turns.

    Args:
        case: "qm9" (batch 120, 11 regressions, 64 features) or "cifar" (batch 128, 20 binary
            tasks, 160 features), with their own networks.
        rounds: Measurements of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (case, rounds, folder), nprocs=WORLD)
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return {"case": case, **found}


def _process(rank: int, case: str, rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    together, alone = _step(case, rank, WORLD), _step(case, 0, 1)
    found: dict[str, list[list[float]]] = {"two": [], "one": []}
    for turn in range(rounds + 3):
        for name, step in (("two", together), ("one", alone)):
            dist.barrier()
            if name == "one" and rank:
                continue  # it waits, and leaves the memory's bandwidth to the other
            stamps = step()
            if turn >= 3:
                found[name].append([b - a for a, b in itertools.pairwise(stamps)])
    if rank == 0:
        told: dict[str, Any] = {}
        for name, rows in found.items():
            medians = [round(1e3 * median(part), 2) for part in zip(*rows, strict=True)]
            told[f"{name}, ms"] = dict(zip(PARTS, medians, strict=True))
        totals = {name: [sum(parts) for parts in rows] for name, rows in found.items()}
        ratio = median(a / b for a, b in zip(totals["two"], totals["one"], strict=True))
        told["two over one"] = round(ratio, 3)
        Path(folder, "found.json").write_text(json.dumps(told), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _step(case: str, rank: int, world: int) -> Callable[[], list[float]]:
    """A step that gives the times at which its parts begin, and the last one ends."""
    torch.manual_seed(0)
    network: nn.Module = MessagePassing() if case == "qm9" else CifarNetwork()
    inputs: Any
    if case == "qm9":
        size, targets = 120, torch.randn(120, 11)
        torch.manual_seed(rank)  # each has graphs of its own
        inputs, head = random_groups(size // world), heads.Gaussian(64, 11)
    else:
        size, targets = 128, F.one_hot(torch.randint(20, (128,)), 20).float()
        inputs, head = torch.rand(size, 3, 32, 32)[rank::world], heads.Bernoulli(160, 20)
    own = targets[rank::world]
    mtl = ba.BayesAgg({"tasks": head}, distributed=world > 1)
    net = DistributedDataParallel(network) if world > 1 else network
    weights = [*network.parameters(), *mtl.parameters()]
    with torch.no_grad():
        features = network(inputs)
    mtl.collect(features, {"tasks": own})
    mtl.update_prior()
    mtl.start_bayes()

    def step() -> list[float]:
        for weight in weights:
            weight.grad = None
        stamps = [time.perf_counter()]

        def reached(gradient: Tensor) -> None:
            stamps.append(time.perf_counter())

        h = net(inputs)
        h.register_hook(reached)
        stamps.append(time.perf_counter())
        mtl.backward(h, {"tasks": own})
        return [*stamps, time.perf_counter()]

    return step


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("--case", choices=["qm9", "cifar"], default="qm9")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.case, options.rounds), indent=2))


if __name__ == "__main__":
    main()
