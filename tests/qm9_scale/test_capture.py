"""Captured steps: the same numbers as steps from Python, bit for bit, on the CPU's twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesagg_pyro import diagnostics
from experiments.errors import SettingsError
from experiments.run import Run
from experiments.training import CHECKPOINT, RECORD, Trainer, loop, stepping
from experiments.training.checkpoints import load
from tests.experiments.toy import equal, without_times
from tests.qm9_scale.tape import TapeBackend

BAYES: dict[str, Any] = {"pretrain": 1, "prior_variance": 1.0, "reduction": "sum"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ls, cosine": ("ls", {}, {"schedule": "cosine"}),
    "paper": ("bayesagg", {"pretrain": 1}, {}),
    "fresh": ("bayesagg", {**BAYES, "prior": "fresh", "resolution": "dimension"}, {}),
    "evidence": ("bayesagg", {**BAYES, "prior": "evidence"}, {"schedule": "cosine"}),
    "integrated noise": (
        "bayesagg",
        {**BAYES, "prior": "fresh", "resolution": "task", "noise": "integrated"},
        {},
    ),
    "learned noise": ("bayesagg", {**BAYES, "noise": "learned"}, {}),
    "the rest": (
        "bayesagg",
        {**BAYES, "leave_batch_out": True, "floor": 0.3, "max_ratio": 4.0, "mean": "plug-in"},
        {"clip_norm": 0.5, "head_bias": True, "schedule": "cosine"},
    ),
}


def state(out: Path) -> dict[str, Any]:
    saved = load(out / CHECKPOINT)
    saved["history"] = without_times(saved["history"])
    return saved


@pytest.mark.parametrize("case", list(CASES))
def test_a_replayed_step_is_the_step(
    case: str, make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, options, settings = CASES[case]
    run = make(method, options, graph="twin", batch_size=8, **settings)
    twin = Trainer(run, tmp_path / "twin").train()
    backend = TapeBackend()
    monkeypatch.setattr(stepping, "TwinBackend", lambda: backend)
    tape = Trainer(run, tmp_path / "tape").train()
    equal(state(tmp_path / "tape"), state(tmp_path / "twin"))
    assert tape["last"] == twin["last"]
    assert sum(graph.replays for graph in backend.graphs) >= 3


def test_the_tape_notices_what_a_graph_would_not_see(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate kept on the host is baked in: replayed for the whole run, the two must differ."""
    run = make("ls", schedule="cosine", graph="twin")
    monkeypatch.setattr(loop, "optimizer_of", _host_rate)
    Trainer(run, tmp_path / "twin").train()
    backend = TapeBackend()
    monkeypatch.setattr(stepping, "TwinBackend", lambda: backend)
    Trainer(run, tmp_path / "tape").train()
    with pytest.raises(AssertionError):
        equal(state(tmp_path / "tape")["method"], state(tmp_path / "twin")["method"])


def test_fixed_shapes_change_nothing_but_rounding(make: Callable[..., Run], tmp_path: Path) -> None:
    options = {**BAYES, "prior": "fresh", "resolution": "dimension"}
    free = Trainer(make("bayesagg", options), tmp_path / "free").train()
    fixed = Trainer(make("bayesagg", options, graph="twin"), tmp_path / "fixed").train()
    for a, b in zip(free["history"], fixed["history"], strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-3)


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_recorded_steps_run_from_python_and_change_nothing(
    method: str, make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BAYES if method == "bayesagg" else {}
    run = make(method, options, graph="twin")
    Trainer(run, tmp_path / "plain").train()
    Trainer(run, tmp_path / "twin", record=4).train()
    monkeypatch.setattr(stepping, "TwinBackend", TapeBackend)
    Trainer(run, tmp_path / "tape", record=4).train()
    for out in ("twin", "tape"):
        equal(state(tmp_path / out), state(tmp_path / "plain"))
    twin, tape = (diagnostics.read(tmp_path / out / RECORD) for out in ("twin", "tape"))
    assert [row["step"] for row in tape] == list(range(0, 21, 4))
    for a, b in zip(tape, twin, strict=True):
        assert {k: (v, b[k]) for k, v in a.items() if v != b[k]} == {}


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_resumed_twin_equals_uninterrupted(
    method: str, make: Callable[..., Run], tmp_path: Path
) -> None:
    options = {**BAYES, "prior": "fresh"} if method == "bayesagg" else {}
    whole, half = (
        make(method, options, epochs=epochs, graph="twin", batch_size=8) for epochs in (4, 2)
    )
    Trainer(whole, tmp_path / "whole").train()
    Trainer(half, tmp_path / "parts").train()
    Trainer(whole, tmp_path / "parts", resume=True).train()
    equal(state(tmp_path / "parts"), state(tmp_path / "whole"))


def test_refusals(make: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"graph = 'on' cannot work: a CUDA graph needs a CUDA"):
        Trainer(make("ls", graph="on"), tmp_path / "on").train()
    running = {**BAYES, "prior": "running", "half_life": 30.0}
    with pytest.raises(SettingsError, match="these options cannot be captured; give auto or off"):
        Trainer(make("bayesagg", running, graph="twin"), tmp_path / "running").train()
    assert not any(tmp_path.glob("*/checkpoint.pt"))


def _host_rate(parameters: Any, settings: Any, device: Any, captured: bool) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
