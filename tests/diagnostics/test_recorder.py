"""The recorder: when it writes, what, and that it changes nothing."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, diagnostics, heads, priors
from bayesagg_pyro.diagnostics import _recorder
from bayesagg_pyro.errors import SettingError, ShapeError


class World:
    """A small engine with a regression head of two tasks and a binary one, on fixed data."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6), nn.ReLU())
        self.heads: dict[str, heads.Head] = {
            "level": heads.Gaussian(6, tasks=2, noise_scale=0.5),
            "flag": heads.Bernoulli(6),
        }
        self.mtl = ba.BayesAgg(self.heads, aggregation.PrecisionWeighted.paper(0.5), **settings)
        self.x = torch.randn(60, 4)
        self.y = {"level": self.x[:, :2].sin(), "flag": (self.x[:, 2:3] > 0).float()}
        parameters = [*self.net.parameters(), *self.mtl.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.05)

    def epoch(self) -> None:
        for rows in torch.arange(60).split(20):
            self.optimizer.zero_grad()
            self.mtl.backward(self.net(self.x[rows]), {k: v[rows] for k, v in self.y.items()})
            self.optimizer.step()
        self.mtl.update_prior()

    def train(self, epochs: int = 3) -> World:
        for epoch in range(epochs):
            if epoch == 1:
                self.mtl.start_bayes()
            self.epoch()
        return self


def test_one_record_every_n_steps_from_the_first(tmp_path: Path) -> None:
    world = World()
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=2)
    recorder.notes["run"] = "a"
    world.train()
    rows = diagnostics.read(tmp_path / "r.jsonl")
    assert [row["step"] for row in rows] == [0, 2, 4, 6, 8]
    assert [row["bayesian"] for row in rows] == [False, False, True, True, True]
    assert {row["run"] for row in rows} == {"a"}
    assert recorder.step == 9
    assert "weight/flag" not in rows[0]
    assert sum(rows[2][f"weight/{t}"] for t in ("level.0", "level.1", "flag")) == pytest.approx(1)
    assert sum(rows[2][f"share/{t}"] for t in ("level.0", "level.1", "flag")) == pytest.approx(1)
    assert all(isinstance(v, (int, float, str)) for row in rows for v in row.values())


def test_columns_are_those_of_the_step(tmp_path: Path) -> None:
    world = World(keep_gradients=True)
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=1)
    world.train()
    row, info = diagnostics.read(recorder.path)[-1], world.mtl.info
    assert info is not None
    assert info.gradients is not None
    assert info.effective_tasks is not None
    assert row["loss/level.1"] == pytest.approx(float(info.losses["level"][1]), rel=1e-4)
    assert row["effective_tasks"] == pytest.approx(float(info.effective_tasks), rel=1e-4)
    ratio = info.gradients.mean[2].abs() / info.gradients.variance[2].sqrt()
    assert row["snr/flag"] == pytest.approx(float(ratio.median()), rel=1e-4)


def test_watching_changes_nothing(tmp_path: Path) -> None:
    plain, watched = World(), World()
    fresh_called = []

    def fresh() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        fresh_called.append(1)
        return watched.net(watched.x), watched.y

    base = {name: priors.isotropic(head, 1.0) for name, head in watched.heads.items()}
    diagnostics.Recorder(watched.mtl, tmp_path / "r.jsonl", every=1, fresh=fresh, base=base)
    state = torch.random.get_rng_state()
    plain.train(), watched.train()
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(plain.net.parameters(), watched.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(fresh_called) == 6  # Bayesian steps only: before, there is no prior
    info = watched.mtl.info
    assert info is not None
    assert info.gradients is info.stages is None  # nothing is held on to
    last = diagnostics.read(tmp_path / "r.jsonl")[-1]
    assert last["stale_distance/level.0"] >= 0


def test_other_steps_only_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=100)
    world.train(2)

    def fail(*_: object) -> None:
        raise AssertionError("computed outside its own steps")

    monkeypatch.setattr(_recorder, "row_of", fail)
    monkeypatch.setattr(_recorder._lines, "append", fail)
    world.epoch()
    world.mtl.eval()
    world.mtl.backward(world.net(world.x), world.y)
    world.mtl.train()


def test_evaluation_is_not_training(tmp_path: Path) -> None:
    world = World().train(2)
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=1)
    world.mtl.eval()
    world.mtl.backward(world.net(world.x), world.y)
    assert recorder.step == 0
    world.mtl.train()
    recorder.skip(7)
    assert recorder.step == 7
    recorder.close()
    world.epoch()
    assert recorder.step == 7
    assert diagnostics.read(recorder.path) == []


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """As /dev/null was by a file, where root ran several processes of which one records."""
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    world = World()
    recorder = diagnostics.Recorder(world.mtl, null, every=1)
    world.train(2)
    assert recorder.step == 6
    assert null.is_symlink()


def test_a_resumed_run_replaces_what_it_does_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    world = World()
    diagnostics.Recorder(world.mtl, path, every=1)
    world.train(2)
    before = diagnostics.read(path)
    with path.open("ab") as file:
        file.write(b'{"step": 6, "bay')  # cut short by an interruption
    assert diagnostics.read(path) == before
    diagnostics.Recorder(world.mtl, path, every=1, start=3)
    assert diagnostics.read(path) == before[:3]
    world.epoch()
    assert [row["step"] for row in diagnostics.read(path)] == [0, 1, 2, 3, 4, 5]
    assert list(tmp_path.iterdir()) == [path]


def test_without_an_engine(tmp_path: Path) -> None:
    world = World()
    recorder = diagnostics.Recorder(world.heads, tmp_path / "r.jsonl", every=2)
    features = torch.rand(20, 6)
    features[:, 3] = 0
    losses = {"level": torch.tensor([1.0, torch.nan]), "flag": torch.tensor([2.0])}
    for _ in range(3):
        recorder.see(features, {k: v[:20] for k, v in world.y.items()}, losses)
    rows = diagnostics.read(recorder.path)
    assert [row["step"] for row in rows] == [0, 2]
    assert rows[0]["live_units"] == 5
    assert rows[0]["loss/level.1"] is None  # JSON knows no NaN
    assert rows[0]["loss/flag"] == 2


def test_bad_settings_change_nothing(tmp_path: Path) -> None:
    world = World()
    for bad in ({"every": 0}, {"every": 1.5}, {"start": -1}, {"fresh": lambda: (None, {})}):
        with pytest.raises(SettingError):
            diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", **bad)
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    with pytest.raises(SettingError, match=r"line 1 of .*notes.txt"):
        diagnostics.Recorder(world.mtl, other)
    assert other.read_text() == "hello\n"
    assert world.mtl.observer is None
    with pytest.raises(SettingError, match="no readable record"):
        diagnostics.read(tmp_path / "none")


def test_a_refused_batch_does_not_count(tmp_path: Path) -> None:
    world = World()
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=1)
    with pytest.raises(ShapeError):
        world.mtl.backward(world.net(world.x)[:, :3], world.y)
    assert recorder.step == 0


def test_a_full_disk_stops_a_step_that_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    world = World().train(2)
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=1, start=6)
    world.optimizer.zero_grad()
    before = {name: value.clone() for name, value in world.mtl.state_dict().items()}
    with monkeypatch.context() as patch:
        patch.setattr(_recorder._lines, "append", full)
        with pytest.raises(OSError, match="No space"):
            world.mtl.backward(world.net(world.x), world.y)
    assert all(weight.grad is None for weight in world.net.parameters())
    after = world.mtl.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert recorder.step == 6
    world.epoch()
    assert [row["step"] for row in diagnostics.read(recorder.path)] == [6, 7, 8]


def test_missing_labels(tmp_path: Path) -> None:
    world = World()
    world.mtl.heads["level"].missing = "nan"  # type: ignore[assignment]
    world.y["level"][::2, 0] = torch.nan
    world.y["level"][:, 1] = torch.nan
    diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl", every=1)
    row = diagnostics.read(world.train(2).mtl.observer.path)[-1]  # type: ignore[union-attr]
    for column in ("weight", "share", "snr", "loss"):
        assert row[f"{column}/level.1"] is None
    assert row["snr/level.0"] > 0
    assert json.dumps(row)


def test_copies_of_the_engine(tmp_path: Path) -> None:
    world = World()
    diagnostics.Recorder(world.mtl, tmp_path / "r.jsonl")
    assert copy.deepcopy(world.mtl).observer is not world.mtl.observer
    assert "observer" not in world.mtl.state_dict()
