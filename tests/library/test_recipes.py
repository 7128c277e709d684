"""The recipes for several processes end with the weights that one process ends with."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import runpy
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from tests.forked import FORKED

FOLDER = Path(__file__).parents[2] / "docs" / "several_processes"
NEEDS = {
    "plain": "torch",
    "with_accelerate": "accelerate",
    "with_fabric": "lightning",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
}
RECIPES = [name for name, package in NEEDS.items() if importlib.util.find_spec(package)]
WORLDS = [3, 2]


def lead(ports: list[int], folder: str) -> None:
    """Forks the processes when it has imported what takes seconds."""
    for name in RECIPES:
        importlib.import_module(NEEDS[name])
    gc.freeze()  # trainers collect garbage, and need not go through all this
    mp.start_processes(work, (ports, folder), max(WORLDS), start_method="fork")


def work(rank: int, ports: list[int], folder: str) -> None:
    """Runs each as `torchrun` would, in three processes, then in two."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    sys.path.insert(0, str(FOLDER))
    for (world, name), port in zip(itertools.product(WORLDS, RECIPES), ports, strict=True):
        if rank >= world:
            break
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": f"{name} {world}"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.argv = [f"{name}.py", f"{folder}/{name} {world}.pt"]
        sys.modules.pop("example", None)  # it reads the number of processes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # others' own
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        if dist.is_initialized():
            dist.destroy_process_group()
        if "accelerate.state" in sys.modules:  # keeps the number of processes
            sys.modules["accelerate.state"].AcceleratorState._reset_state(True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("recipes")
    free = [socket.socket() for _ in RECIPES for _ in WORLDS]
    for one in free:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in free]
    for one in free:
        one.close()
    leader = FORKED.Process(target=lead, args=(ports, str(made)))
    leader.start()
    leader.join()
    assert leader.exitcode == 0, "what failed is printed above"
    return made


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    """Without any process group."""
    torch.set_default_dtype(torch.float64)
    sys.path.insert(0, str(FOLDER))
    try:
        example: Any = importlib.import_module("example")
        backbone, mtl = example.network()
        weights = [*backbone.parameters(), *mtl.parameters()]
        optimizer = torch.optim.Adam(weights, lr=0.01)
        for _ in range(example.EPOCHS):
            for x, targets in torch.utils.data.DataLoader(example.Data(), example.BATCH):
                optimizer.zero_grad()
                mtl.backward(backbone(x), targets)
                optimizer.step()
            mtl.update_prior()
    finally:
        sys.path.remove(str(FOLDER))
        torch.set_default_dtype(torch.float32)
    return {**backbone.state_dict(), **mtl.heads.state_dict()}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NEEDS)
def test_recipes_train_as_one_process(
    folder: Path, alone: dict[str, Tensor], name: str, world: int
) -> None:
    if name not in RECIPES:
        pytest.skip(f"needs {NEEDS[name]}")
    saved = torch.load(folder / f"{name} {world}.pt")
    heads = {k.removeprefix("heads."): v for k, v in saved["mtl"].items() if k[:6] == "heads."}
    found = {**saved["backbone"], **heads}
    assert found.keys() == alone.keys()
    for key, value in alone.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-9)


def test_every_recipe_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*NEEDS, "example"}
