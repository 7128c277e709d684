"""Processes that go through their shares in pieces take the step of one process with all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from bayesagg_pyro.errors import StateError
from tests.library import ranks

#: Of 20 examples, by process: not as many pieces in each.
PIECES = [[slice(0, 4), slice(4, 5), slice(5, 9)], [slice(9, 12), slice(12, 15)], [slice(15, 20)]]


def train(rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    mtl = ba.BayesAgg({"r": heads.Gaussian(5, 2), "b": heads.Bernoulli(5)}, warmup_epochs=1)
    mtl.double()
    net = DistributedDataParallel(backbone) if world > 1 else backbone
    optimizer = torch.optim.SGD([*backbone.parameters(), *mtl.parameters()], lr=0.05)
    x = torch.randn(20, 4)
    y = {"r": x[:, :2].sin(), "b": (x[:, 2:3] > 0).double()}
    found: dict[str, Any] = {"losses": [], "grads": []}
    for _ in range(3):
        optimizer.zero_grad()
        if world == 1:
            losses = mtl.backward(net(x), y)
        else:
            pieces = [(x[rows], {k: v[rows] for k, v in y.items()}) for rows in PIECES[rank]]
            losses = mtl.backward_in_pieces(net, pieces)
        found["losses"].append(losses)
        found["grads"].append([w.grad.clone() for w in backbone.parameters()])
        optimizer.step()
        mtl.update_prior()
    return {**found, "weights": [*backbone.state_dict().values()], "state": mtl.state_dict()}


def apart(rank: int) -> str:
    """What is said of a backbone that nobody averages."""
    torch.manual_seed(0)
    backbone, mtl = nn.Linear(4, 5), ba.BayesAgg({"r": heads.Gaussian(5)}).double()
    x = torch.randn(6, 4)
    for _ in range(3):
        with torch.no_grad():
            for weight in backbone.parameters():
                weight += 0.1 * rank
        try:
            mtl.backward_in_pieces(backbone, [(x[rank::3], {"r": x[rank::3, :1]})])
        except StateError as error:
            return str(error)
    return "nothing"


def work(rank: int) -> tuple[dict[str, Any], str]:
    return train(rank, 3), apart(rank)


@pytest.fixture(scope="module")
def processes() -> list[tuple[dict[str, Any], str]]:
    return ranks.run(work, 3)


def same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_the_processes_take_the_step_of_one(processes) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        alone = train(0, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    for found, _ in processes:
        for what in ("losses", "grads", "weights"):
            same(alone[what], found[what])
        for name in alone["state"].keys() & found["state"].keys() - {"state.entries"}:
            same(alone["state"][name], found["state"][name])


def test_a_backbone_that_is_not_averaged_is_noticed(processes) -> None:
    assert all("gradients are not averaged" in told for _, told in processes)
