"""Biases that start at the constants of the training targets, in all networks of every method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.dense.scenes import Scenes
from experiments.digits.benchmark import Digits
from experiments.errors import SettingsError
from experiments.methods import options
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer

METHODS: dict[str, dict[str, Any]] = {
    "ls": {},
    "bayesagg": {"pretrain": 1, "rule": "default"},
    "stl": {},
    "ensemble-heads": {"members": 2},
    "ensemble-networks": {"members": 2},
}


def leaves(state: Any) -> Iterator[tuple[str, Any]]:
    """Everything in nested states, with the last part of its name."""
    inner = state.items() if isinstance(state, dict) else enumerate(state)
    for name, value in inner:
        if isinstance(value, (dict, list, tuple)):
            yield from leaves(value)
        else:
            yield str(name).split(".")[-1], value


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_training_starts_there(name: str, fitted: bool, tmp_path: Path) -> None:
    """Two epochs of steps too small to matter."""
    settings = Settings(
        epochs=2, learning_rate=1e-9, device="cpu", threads=1, head_bias=True, fitted_bias=fitted
    )
    run = Run(Digits(), name, options(name, METHODS[name]), settings)
    trainer = Trainer(run, tmp_path)
    trainer.train()
    constants = trainer.data.constants
    state = trainer.method.state_dict()
    weights = [value for key, value in leaves(state) if key == "weight"]
    for kind, head in run.benchmark.heads(True).items():
        own = [w[:, -1] for w in weights if w.shape == head.weight.shape]
        assert own, kind
        if name == "ensemble-heads":
            own += state["members"][kind].view(-1, *head.weight.shape)[..., -1].unbind()
            assert len(own) == 1 + 2
        if (name, kind) == ("bayesagg", "regression"):
            continue  # at its posterior mean by now
        for bias in own:
            assert torch.allclose(bias, constants[kind].flatten(), atol=1e-4) == fitted, kind


@pytest.mark.parametrize("name", ["ls", "ensemble-heads"])
def test_of_a_mean_and_its_noise_the_mean_starts_there(name: str) -> None:
    constants = {"normal": torch.tensor([0.1, -0.2, 0.3])}
    settings = Settings(epochs=1, device="cpu", head_bias=True, fitted_bias=True)
    scenes = Scenes(regression="heteroscedastic", only="normal", width=4, levels=1)
    run = Run(scenes, name, options(name, METHODS[name]), settings)
    method: Any = run.build(torch.device("cpu"), constants)
    features = torch.zeros(1, 4)
    weights = [None] if name == "ls" else method.weights["normal"]
    for weight in weights:
        outputs = method.by_name["normal"](features, weight)[0]  # [tasks, 2]
        torch.testing.assert_close(outputs[:, 0], constants["normal"])
        assert not torch.isin(outputs[:, 1], constants["normal"]).any()


def test_without_biases_it_is_refused() -> None:
    with pytest.raises(SettingsError, match="fitted_bias = True cannot work: heads have no bias"):
        Settings(fitted_bias=True)
