"""A process that is late, killed in its backbone's backward pass, or killed before a call."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from bayesagg_pyro.errors import StateError
from tests.library import ranks

WORLD = 3
STEPS = 4


class Training:
    """An engine on a small backbone, and its data."""

    def __init__(self, group: Any = None, *, several: bool = False) -> None:
        torch.manual_seed(0)
        self.backbone = nn.Linear(4, 3)
        self.mtl = ba.BayesAgg(
            {"r": heads.Gaussian(3, 2), "b": heads.Bernoulli(3)},
            warmup_epochs=1,
            distributed=several if group is None else group,
        ).double()
        self.net: nn.Module = self.backbone
        if several:
            self.net = DistributedDataParallel(self.backbone, process_group=group)
        weights = [*self.backbone.parameters(), *self.mtl.parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=0.05)
        self.x = torch.randn(STEPS, 12, 4, generator=torch.Generator().manual_seed(1))

    def step(self, at: int, rows: slice = slice(None), spoil: Any = None) -> None:
        x = self.x[at, rows]
        self.optimizer.zero_grad()
        h = self.net(x)
        if spoil is not None:
            h.register_hook(spoil)
        self.mtl.backward(h, {"r": x[:, :2].sin(), "b": (x[:, 2:3] > 0).double()})
        self.optimizer.step()
        if at % 2:
            self.mtl.update_prior()

    def state(self) -> dict[str, Any]:
        return {"backbone": self.backbone.state_dict(), "mtl": self.mtl.state_dict()}

    def load(self, saved: dict[str, Any]) -> None:
        self.backbone.load_state_dict(saved["backbone"])
        self.mtl.load_state_dict(saved["mtl"])


def refused(training: Training, call: Callable[[], None]) -> tuple[str, bool]:
    """What is said, and whether the engine is as it was."""
    before = training.mtl.state_dict()
    try:
        call()
    except StateError as error:
        after = training.mtl.state_dict()
        same = all(torch.equal(before[k], after[k]) for k in before)
        return str(error), same and before.keys() == after.keys()
    return "", False


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(rank: int, folder: str) -> dict[str, Any]:
    first = Training(several=True)  # what is imported on the way may take long
    for at in range(STEPS):
        first.step(at, slice(rank, None, WORLD))
    short = timedelta(seconds=6)
    late, all_of_them = (dist.new_group(timeout=short) for _ in range(2))
    two = dist.new_group([0, 1], timeout=short)
    rows = slice(rank, None, WORLD)
    found = {}

    # The second does not call, and comes when the others have given up.
    training = Training(late, several=True)
    for at in range(2):  # DistributedDataParallel itself exchanges something in the second forward
        training.step(at, rows)
    if rank == 1:
        dist.barrier()
    began = time.monotonic()
    found["late"] = refused(training, lambda: training.step(2, rows))
    found["waited"] = time.monotonic() - began
    if rank != 1:
        dist.barrier()

    # The third dies when gradients are on their way through its backbone.
    training = Training(all_of_them, several=True)
    for at in range(2):
        training.step(at, rows)
    if rank == 0:
        torch.save(training.state(), f"{folder}/last.pt")
    found["killed"] = refused(training, lambda: training.step(2, rows, die if rank == 2 else None))

    # Of the other two the second dies before it calls.
    training = Training(two, several=True)
    for at in range(2):
        training.step(at, slice(rank, None, 2))
    if rank == 1:
        torch.save(found, f"{folder}/one.pt")
        die()
    found["gone"] = refused(training, lambda: training.step(2, slice(rank, None, 2)))
    torch.save(found, f"{folder}/zero.pt")
    os._exit(0)  # there is nobody to leave the group with


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as made:
        started = ranks.start(work, WORLD, made, made)
        for process in started.processes:
            process.join(60)
        told = [pickle.loads(Path(f).read_bytes()) for f in started.error_files if Path(f).exists()]
        assert [process.exitcode for process in started.processes] == [0, -9, -9], told
        yield Path(made)


def test_the_others_are_told_what_to_do(folder: Path) -> None:
    zero, one = (torch.load(folder / f"{name}.pt") for name in ("zero", "one"))
    for found, cases in ((zero, ("late", "killed", "gone")), (one, ("late", "killed"))):
        for case in cases:
            said, same = found[case]
            assert "end them all, and resume from the last checkpoint" in said, (case, said)
            assert same, case
    assert zero["waited"] < 30


def test_the_run_goes_on_from_the_checkpoint(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        alone, resumed = Training(), Training()
        for at in range(STEPS):
            alone.step(at)
        resumed.load(torch.load(folder / "last.pt"))
        for at in range(2, STEPS):
            resumed.step(at)
    finally:
        torch.set_default_dtype(torch.float32)
    expected: Tensor
    for part, values in alone.state().items():
        for name, expected in values.items():
            if "generator" not in name and name != "state.entries":
                torch.testing.assert_close(resumed.state()[part][name], expected, msg=name)
