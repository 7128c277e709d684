"""The trainer: the baseline by hand, exact resumption, interruption, errors."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import experiments.methods
from experiments.benchmark import Figures, Values
from experiments.errors import (
    CheckpointError,
    DivergenceError,
    OutputError,
    RunInterrupted,
    SettingsError,
)
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.randomness import seed_of
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import CHECKPOINT, RESULTS, Trainer, checkpoints
from experiments.training.environment import environment
from experiments.training.reporting import Reporter
from tests.experiments.toy import Toy, equal, without_times


def settings(epochs: int, **changes: Any) -> Settings:
    return Settings(**{"epochs": epochs, "batch_size": 32, "device": "cpu", "seed": 3} | changes)


OPTIONS = {
    "ls": MethodOptions(),
    "bayesagg": BayesAggOptions(pretrain=1, prior_variance=1.0, power=0.5, reduction="sum"),
}


def make(method: str, epochs: int, benchmark: Toy | None = None, **changes: Any) -> Run:
    return Run(benchmark or Toy(), method, OPTIONS[method], settings(epochs, **changes))


OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("decay", [0.0, 3.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ls_is_the_loop_anybody_would_write(optimizer: str, decay: float, tmp_path: Path) -> None:
    run = make("ls", 3, Toy(dropout=0.0), optimizer=optimizer, weight_decay=decay, beta2=0.9)
    trainer = Trainer(run, tmp_path)
    record = trainer.train()

    torch.manual_seed(seed_of(3, "initial weights"))
    backbone = run.benchmark.backbone()
    heads = run.benchmark.heads(False)
    parameters = [*backbone.parameters()] + [p for h in heads.values() for p in h.parameters()]
    by_torch = OPTIMIZERS[optimizer](parameters, lr=1e-3, betas=(0.9, 0.9), weight_decay=decay)
    data = run.benchmark.load(torch.device("cpu"))
    for epoch in range(3):
        order = torch.Generator().manual_seed(seed_of(3, "order", epoch))
        for x, y in data.train.batches(32, order):
            features = backbone(x)
            loss = torch.zeros(())
            for name, head in heads.items():
                loss = loss + (features @ head.weight.T - y[name]).square().mean(0).sum()
            by_torch.zero_grad()
            loss.backward()
            by_torch.step()
    for mine, theirs in zip(parameters, trainer.method.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-6)
    x, y = next(iter(data.test.batches(1000)))
    by_hand = (backbone(x) @ heads["alone"].weight.T - y["alone"]).abs().mean() * 1000
    assert record["last"]["test"]["product"] == pytest.approx(by_hand.item(), rel=1e-4)


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_training_learns(method: str, tmp_path: Path) -> None:
    run = make(method, 12, Toy(rows=600, dropout=0.0), learning_rate=2e-2)
    record = Trainer(run, tmp_path).train()
    for task in ("sine", "square"):
        assert record["best"]["test"][task] < 0.6 * record["constant"]["test"][task]


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
@pytest.mark.parametrize("stop", [1, 2])
def test_resumed_equals_uninterrupted(method: str, stop: int, tmp_path: Path) -> None:
    whole = Trainer(make(method, 4), tmp_path / "whole").train()
    torch.manual_seed(99)  # whatever the caller does to the global generator must not matter
    if stop == 2:  # a shorter run, then more epochs
        Trainer(make(method, stop), tmp_path / "parts").train()
    else:
        _stop_after(make(method, 4), tmp_path / "parts", stop)
    torch.manual_seed(98)
    parts = Trainer(make(method, 4), tmp_path / "parts", resume=True).train()

    a, b = (checkpoints.load(tmp_path / name / CHECKPOINT) for name in ("whole", "parts"))
    for state in (a, b):
        state["history"] = without_times(state["history"])
    equal(a, b)
    assert whole["best"] == parts["best"]
    assert whole["last"] == parts["last"]
    assert whole["weights"] == parts["weights"]


class StopAt(Reporter):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.now = epoch, 0

    def epoch_started(self, epoch: int, steps: int, phase: str, learning_rate: float) -> None:
        self.now = epoch

    def step(self, loss: torch.Tensor) -> None:
        if self.now == self.epoch:
            raise KeyboardInterrupt


def _stop_after(run: Run, out: Path, epochs: int) -> RunInterrupted:
    with pytest.raises(RunInterrupted) as caught:
        Trainer(run, out, reporter=StopAt(epochs + 1)).train()
    return caught.value


def test_interruption_keeps_the_finished_epochs(tmp_path: Path) -> None:
    whole = Trainer(make("bayesagg", 4), tmp_path / "whole").train()
    error = _stop_after(make("bayesagg", 4), tmp_path / "parts", 2)
    assert error.epochs_done == 2
    assert error.checkpoint == tmp_path / "parts" / CHECKPOINT
    assert "--resume" in str(error)
    assert not (tmp_path / "parts" / RESULTS).exists()
    parts = Trainer(make("bayesagg", 4), tmp_path / "parts", resume=True).train()
    assert without_times(parts["history"]) == without_times(whole["history"])
    assert parts["last"] == whole["last"]


def test_interruption_before_the_first_epoch(tmp_path: Path) -> None:
    error = _stop_after(make("ls", 2), tmp_path, 0)
    assert error.checkpoint is None
    assert "nothing to resume" in str(error)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .* leave --resume away"):
        Trainer(make("ls", 2), tmp_path, resume=True)


class Pressed(Toy):
    """Ctrl-C while the data is loaded."""

    def load(self, device: torch.device) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_interruption_before_an_earlier_run_is_touched(how: str, tmp_path: Path) -> None:
    Trainer(make("ls", 3), tmp_path).train()
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(RunInterrupted) as caught:
        Trainer(make("ls", 4, Pressed()), tmp_path, **{how: True}).train()
    if how == "resume":
        assert caught.value.epochs_done == 3
        assert "3 finished epoch(s) are kept" in str(caught.value)
    else:
        assert caught.value.checkpoint is None
        assert f"the earlier run in {tmp_path} is untouched" in str(caught.value)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_an_interrupted_overwriting_counts_its_own_epochs(tmp_path: Path) -> None:
    Trainer(make("ls", 3), tmp_path).train()
    with pytest.raises(RunInterrupted, match="1 finished epoch"):
        Trainer(make("ls", 3), tmp_path, overwrite=True, reporter=StopAt(2)).train()


def test_the_command_is_told_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experiments, experiments.methods):
        program = Path(str(module.__file__)).with_name("__main__.py")
        monkeypatch.setattr("sys.argv", [str(program), "ls"])
        found = environment(torch.device("cpu"))["command"]
        assert found == ["python", "-m", module.__name__, "ls"]


def test_global_generators_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    Trainer(make("bayesagg", 2), tmp_path).train()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_same_seed_same_start_for_every_method(tmp_path: Path) -> None:
    """The pre-training of BayesAgg is LS itself."""
    a = Trainer(make("ls", 1), tmp_path / "a")
    b = Trainer(make("bayesagg", 2), tmp_path / "b")
    first = a.train()["history"][0]
    second = b.train()["history"][0]
    assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-6)
    third = Trainer(make("ls", 1, seed=4), tmp_path / "c").train()["history"][0]
    assert third["train_loss"] != pytest.approx(first["train_loss"], rel=1e-3)


def test_schedule_and_selection_see_validation_only(tmp_path: Path) -> None:
    changes = {"learning_rate": 0.3, "plateau_patience": 0}
    record = Trainer(make("ls", 8, **changes), tmp_path).train()
    scores = [epoch["delta_m"] for epoch in record["history"]]
    rates = [epoch["learning_rate"] for epoch in record["history"]]
    assert record["best"]["epoch"] == 1 + scores.index(min(scores))
    assert record["best"]["validation_delta_m"] == pytest.approx(min(scores), rel=1e-5)
    assert record["last"]["epoch"] == 8
    expected, best = [0.3], float("inf")
    for value in scores[:-1]:
        worse = value >= best * (1 - 1e-4) if best > 0 else value >= best - 1e-4 * abs(best)
        expected.append(expected[-1] * (0.7 if worse else 1.0))
        best = best if worse else value
    assert rates == pytest.approx(expected)
    assert rates[-1] < 0.3


def test_divergence_names_the_task(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match=r"task product is (inf|nan).*lower --lr.*epoch 1"):
        Trainer(make("ls", 2, Toy(blow_up=True)), tmp_path).train()
    assert not (tmp_path / RESULTS).exists()


def test_a_score_that_is_no_number_selects_no_epoch(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Scored(Toy):
        def score(self, values: Values, figures: Figures) -> float:
            return float("nan")

    with pytest.raises(DivergenceError, match=r"validation score of epoch 1 is nan.*Toy"):
        Trainer(make("ls", 2, Scored()), tmp_path).train()
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    Trainer(make("ls", 1), tmp_path).train()
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(OutputError, match="holds a run already"):
        Trainer(make("ls", 1), tmp_path)
    assert (tmp_path / RESULTS).read_bytes() == before
    Trainer(make("ls", 1, seed=5), tmp_path, overwrite=True).train()
    assert json.loads((tmp_path / RESULTS).read_text())["settings"]["seed"] == 5


def test_resume_refuses_fewer_epochs(tmp_path: Path) -> None:
    Trainer(make("ls", 2), tmp_path).train()
    with pytest.raises(SettingsError, match=r"epochs = 1 cannot work: .* holds 2 epochs already"):
        Trainer(make("ls", 1), tmp_path, resume=True)
    Trainer(make("ls", 2, threads=1), tmp_path, resume=True).train()  # nothing left but the report
    with pytest.raises(CheckpointError, match="optimizer: 'adam' there, 'adamw' here"):
        Trainer(make("ls", 3, optimizer="adamw"), tmp_path, resume=True)


def test_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    record = Trainer(make("ls", 1, threads=before + 1), tmp_path).train()
    assert record["environment"]["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_an_option_that_was_a_mapping_before_is_compared_whole(tmp_path: Path) -> None:
    saved = {"method": {"options": {"power": {"binary": 0.1}}}}
    wanted = {"method": {"options": {"power": {"number": 0.5, "binary": 0.1}}}}
    defaults = {"method": {"options": {"power": 0.85}}}
    with pytest.raises(CheckpointError, match=r"options\.power\.number: None there, 0\.5 here"):
        checkpoints.matches(tmp_path / "checkpoint.pt", saved, wanted, defaults)


def test_resume_refuses_other_settings(tmp_path: Path) -> None:
    Trainer(make("ls", 1), tmp_path).train()
    with pytest.raises(CheckpointError, match=r"settings\.seed: 3 there, 9 here"):
        Trainer(make("ls", 2, seed=9), tmp_path, resume=True)
    with pytest.raises(CheckpointError, match=r"method\.name: 'ls' there, 'bayesagg' here"):
        Trainer(make("bayesagg", 2), tmp_path, resume=True)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other"])
def test_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    Trainer(make("ls", 1), tmp_path).train()
    path = tmp_path / CHECKPOINT
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        weights = next(iter(checkpoints.load(path)["method"]["backbone"].values()))
        content[content.index(weights.numpy().tobytes()) + 5] ^= 1
    path.write_bytes(
        {
            "cut": bytes(content[: len(content) // 2]),
            "flipped": bytes(content),
            "empty": b"",
            "text": b"hello",
            "other": bytes(content),
        }[damage]
    )
    if damage == "other":
        torch.save({"weights": torch.ones(2)}, path)
    left = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"damaged|format") as caught:
        Trainer(make("ls", 2), tmp_path, resume=True)
    assert "start anew" in str(caught.value)
    assert path.read_bytes() == left


def test_unwritable_folder_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "load", lambda *_: pytest.fail("data was loaded"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot write into the output folder .*--out"):
        Trainer(make("ls", 1), tmp_path / "file" / "results")


def test_a_failed_write_keeps_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainer(make("ls", 1), tmp_path).train()
    before = (tmp_path / CHECKPOINT).read_bytes()

    def disk_full(_state: object, file: Any) -> None:
        file.write(b"half of a checkpoi")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(OutputError, match="No space left"):
        Trainer(make("ls", 2), tmp_path, resume=True).train()
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [CHECKPOINT, RESULTS]


def test_watching_weights_does_not_change_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Trainer(make("bayesagg", 4), tmp_path / "a").train()
    monkeypatch.setattr("experiments.methods.BayesAggMethod.example_weights", lambda *_: None)
    alone = Trainer(make("bayesagg", 4), tmp_path / "b").train()
    assert without_times(watched["history"]) == without_times(alone["history"])
    assert [stage["epoch"] for stage in watched["weights"]] == [2, 3, 4]
    for stage in watched["weights"]:
        weights = torch.tensor(stage["by_example"])
        assert weights.shape == (20, 3)
        torch.testing.assert_close(weights.sum(1), torch.ones(20))
        torch.testing.assert_close(torch.tensor(stage["applied"]), weights.mean(0))
    assert alone["weights"] == []


def test_results_are_strict_json_and_complete(tmp_path: Path) -> None:
    returned = Trainer(make("bayesagg", 3), tmp_path).train()

    def refuse(token: str) -> None:
        pytest.fail(f"{token} is not JSON")

    record = json.loads((tmp_path / RESULTS).read_text(), parse_constant=refuse)
    assert record["benchmark"] == {
        "name": "toy",
        "options": {"rows": 160, "dropout": 0.1, "blow_up": False},
    }
    assert record["method"]["options"]["pretrain"] == 1
    assert record["settings"]["seed"] == 3
    assert len(record["history"]) == 3
    for epoch in record["history"]:
        assert set(epoch["train_loss"]) == set(epoch["validation"]) == {"sine", "square", "product"}
        assert epoch["seconds"] > 0
        assert epoch["seconds_per_step"] > 0
    assert record["history"][0]["effective_tasks"] is None
    assert 1 <= record["history"][2]["effective_tasks"] <= 3
    for which in ("best", "last"):
        assert set(record[which]["test"]) == {"sine", "square", "product"}
        assert isinstance(record[which]["test_delta_m"], float)
    environment = record["environment"]
    assert environment["packages"]["torch"]
    assert environment["device"] == "cpu"
    assert environment["command"]
    assert set(record["timing"]["seconds_per_step"]) == {"pre-training", "Bayesian"}
    assert returned["last"]["test"] == record["last"]["test"]


@pytest.mark.parametrize(
    "options",
    [
        BayesAggOptions(pretrain=1, prior_variance=1.0, resolution="dimension"),
        BayesAggOptions(pretrain=1, prior_variance=1.0, resolution="task"),
        BayesAggOptions(pretrain=1, prior_variance=1.0, power=1.0, covariance="full"),
        BayesAggOptions(pretrain=1, prior_variance=1.0, power=0.0, reduction="sum"),
    ],
)
def test_every_kind_of_weight(options: BayesAggOptions, tmp_path: Path) -> None:
    record = Trainer(Run(Toy(), "bayesagg", options, settings(3)), tmp_path).train()
    weights = torch.tensor(record["weights"][-1]["by_example"])
    applied = torch.tensor(record["weights"][-1]["applied"])
    torch.testing.assert_close(weights.sum(1), torch.ones(20), rtol=0, atol=1e-4)
    assert applied.sum().item() == pytest.approx(1, abs=1e-4)
    assert torch.allclose(weights, weights[:1], rtol=1e-4) is (options.power == 0)
    same = options.resolution == "example" or options.power == 0
    assert torch.allclose(applied, weights.mean(0), rtol=1e-3) is same
    assert record["history"][-1]["effective_tasks"] <= 3.001
