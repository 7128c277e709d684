"""Two processes with a share of each batch take the steps of one process with the whole batch."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors

WORLD = 2  # each takes seconds to start; more of them are in test_shares.py
#: Uneven shares of 16 examples.
CUTS = [0, 9, 16]

SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "closed forms": dict,
    "fresh": lambda: {"prior": priors.Fresh()},
    "running": lambda: {"prior": priors.Running(40.0), "validate": "deferred"},
    "previous": lambda: {"prior": priors.PreviousBatch()},
    "sampled": lambda: {
        "inference": {"r": inference.Conjugate(), "b": inference.Ensemble(4, refresh=2)},
        "estimator": gradients.MonteCarlo(8),
        "generator": torch.Generator().manual_seed(4),
        "aggregation": aggregation.PerSample(aggregation.Mean(), samples=2),
    },
}


def data() -> tuple[Tensor, dict[str, Any]]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, 16, 6, generator=g)
    mask = torch.rand(3, 16, 2, generator=g) > 0.3
    mask[:, CUTS[1] : CUTS[2], 0] = False  # the second process has no label of this task
    weight = torch.rand(3, 16, generator=g)
    return x, {"r": (torch.sin(x[..., :2]), mask, weight), "b": (x[..., 2:3] > 0).double()}


def cut(batch: Any, step: int, rows: slice) -> Any:
    if isinstance(batch, dict):
        return {name: cut(one, step, rows) for name, one in batch.items()}
    if isinstance(batch, tuple):
        return tuple(cut(one, step, rows) for one in batch)
    return batch[step, rows]


def train(kind: str, rank: int, world: int) -> dict[str, Tensor]:
    torch.manual_seed(rank)  # the first process's weights are everybody's
    backbone = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    made = {"r": heads.Gaussian(5, tasks=2), "b": heads.Bernoulli(5)}
    mtl = ba.BayesAgg(made, warmup_epochs=1, **SETTINGS[kind]())
    net = DistributedDataParallel(backbone) if world > 1 else backbone
    optimizer = torch.optim.SGD([*backbone.parameters(), *mtl.parameters()], lr=0.05)
    x, y = data()
    rows = slice(CUTS[rank], CUTS[rank + 1]) if world > 1 else slice(None)
    found = {}
    for epoch in range(3):
        for step in range(3):
            optimizer.zero_grad()
            losses = mtl.backward(net(x[step, rows]), cut(y, step, rows))
            optimizer.step()
            found |= {f"loss {epoch} {step} {name}": loss for name, loss in losses.items()}
        batches = ((backbone(x[s, rows]), cut(y, s, rows)) for s in range(3))
        mtl.update_prior(batches if kind == "fresh" else None)
    found |= {f"backbone.{k}": v for k, v in backbone.state_dict().items()}
    found |= {k: v for k, v in mtl.state_dict().items() if "generator" not in k}
    return {k: v for k, v in found.items() if k != "state.entries"}


def refusals(rank: int) -> list[str]:
    """What each process is told where the last one's share is bad."""
    torch.manual_seed(0)
    mtl = ba.BayesAgg({"r": heads.Gaussian(5)})
    h, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 1)
    bad = [{"r": y * torch.nan}, {"r": y[:, [0, 0]]}, {"q": y}]
    told = []
    for wrong in bad:
        try:
            mtl.backward(h, wrong if rank == WORLD - 1 else {"r": y})
        except errors.BayesAggError as error:
            told.append(type(error).__name__)
        assert h.grad is None
    mtl.backward(h, {"r": y})
    alone = ba.BayesAgg({"r": heads.Gaussian(5)}, distributed=False)
    alone.backward(h.detach().requires_grad_(), {"r": y + rank})
    return told


def worker(rank: int, port: int, out: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    found = {kind: train(kind, rank, WORLD) for kind in SETTINGS}
    torch.save({"runs": found, "told": refusals(rank)}, f"{out}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = str(tmp_path_factory.mktemp("ranks"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, (port, out), nprocs=WORLD)
    return [torch.load(f"{out}/{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_processes_agree_with_one(ranks: list[dict[str, Any]], kind: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        alone = train(kind, 0, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    for found in ranks:
        mine = found["runs"][kind]
        assert mine.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(
                mine[name], value, rtol=1e-8, atol=1e-9, equal_nan=True, msg=name
            )
            assert torch.equal(mine[name], ranks[0]["runs"][kind][name]) or value.isnan().any()


def test_a_share_that_is_refused_stops_all(ranks: list[dict[str, Any]]) -> None:
    for found in ranks[:-1]:
        assert found["told"] == ["StateError"] * 3
    assert ranks[-1]["told"] == ["NonFiniteError", "ShapeError", "TaskError"]


if __name__ == "__main__":  # what a spawned process imports
    sys.path.insert(0, str(Path(__file__).parents[2]))
