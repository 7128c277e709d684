"""Runs in pieces: minutes, the size of a checkpoint, a data file from elsewhere, presets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import presets
from experiments.cli import app
from experiments.errors import OutOfTime, SettingsError
from experiments.methods import BayesAggOptions, MethodOptions
from experiments.qm9 import load as load_qm9
from experiments.qm9.prepared import prepare
from experiments.run import Run
from experiments.runner import Request
from experiments.training import CHECKPOINT, RESULTS, Trainer, loop
from experiments.training.checkpoints import load
from tests.experiments.toy import equal, without_times
from tests.qm9_scale.conftest import TABLES

MIB = 2**20


class Clock:
    """Epochs that take a minute each."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 20.0
        return self.now

    def perf_counter(self) -> float:
        return self.now


def state(out: Path) -> dict[str, Any]:
    saved = load(out / CHECKPOINT)
    saved["history"] = without_times(saved["history"])
    return saved


def test_minutes_stop_at_the_end_of_an_epoch_and_resume_exactly(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("bayesagg", {"pretrain": 1, "prior": "fresh", "prior_variance": 1.0}, epochs=4)
    Trainer(run, tmp_path / "whole").train()
    monkeypatch.setattr(loop, "time", Clock())
    with pytest.raises(OutOfTime, match=r"2 of 4 epochs are kept in .*--resume") as caught:
        Trainer(run, tmp_path / "parts", minutes=2.1).train()
    assert caught.value.epochs_done == len(load(tmp_path / "parts" / CHECKPOINT)["history"]) == 2
    assert not (tmp_path / "parts" / RESULTS).exists()
    with pytest.raises(OutOfTime):
        Trainer(run, tmp_path / "parts", resume=True, minutes=0.01).train()  # one epoch at least
    Trainer(run, tmp_path / "parts", resume=True).train()
    equal(state(tmp_path / "parts"), state(tmp_path / "whole"))


def test_minutes_on_the_command_line(tmp_path: Path) -> None:
    words = ["qm9", "--data", str(TABLES), "--molecules", "34", "--validation", "3", "--test", "3"]
    words += ["--width", "8", "--edge-width", "8", "--method", "ls", "--device", "cpu"]
    words += ["--epochs", "500", "--minutes", "0.0001", "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 3, found.output
    assert "of 500 epochs are kept" in found.output
    assert (tmp_path / "run" / CHECKPOINT).exists()
    with pytest.raises(SettingsError, match="minutes"):
        raise SettingsError(_error([*words[:-2], "--minutes", "0", "--out", str(tmp_path / "x")]))


def _error(words: list[str]) -> str:
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    return found.stderr


@pytest.mark.parametrize("method", ["ls", "bayesagg"])
def test_a_checkpoint_of_the_whole_network_stays_small(
    method: str, make: Callable[..., Run], tmp_path: Path
) -> None:
    options = {"pretrain": 1, "prior_variance": 1.0} if method == "bayesagg" else {}
    whole = {"width": 64, "edge_width": 128}
    Trainer(make(method, options, whole, epochs=2, batch_size=17), tmp_path).train()
    assert (tmp_path / CHECKPOINT).stat().st_size < 16 * MIB - 300 * 2048  # 300 epochs of history


def test_largest_molecules_can_be_left_out() -> None:
    whole = load_qm9(path=TABLES)
    most = int(whole.molecules.n_atoms.max()) - 1
    prepared = prepare(whole, seed=0, max_atoms=most, validation=2, test=2, molecules=10)
    assert int(prepared.train.molecules.sizes.max()) <= most
    assert len(prepared.train) == 10
    with pytest.raises(SettingsError, match="max_atoms = 1 leaves 0"):
        prepare(whole, seed=0, max_atoms=1)


def test_presets_are_defaults_that_any_option_overrides() -> None:
    def run(preset: str, method: str = "bayesagg", **changes: Any) -> Run:
        (made,) = Request("qm9", [method], preset=preset, changes=changes).runs()
        return made

    assert run("paper").options == BayesAggOptions()  # the paper's are the defaults
    assert run("paper").settings.epochs == 300
    chosen = run("recommended", power=0.25, floor="0.1", epochs=40)
    assert isinstance(chosen.options, BayesAggOptions)
    assert (chosen.options.power, chosen.options.floor, chosen.options.prior) == (
        0.25,
        0.1,
        "fresh",
    )
    assert (chosen.settings.epochs, chosen.settings.schedule) == (40, "cosine")
    assert type(run("recommended", "ls").options) is MethodOptions
    assert run("small", width=48).benchmark.options()["width"] == 48
    with pytest.raises(
        SettingsError, match="preset = 'best' is unknown for qm9: give one of paper"
    ):
        presets.find("qm9", "best")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prior", "stale", "prior = .* cannot work"),
        ("fresh_share", 0.0, "fresh_share = .* cannot work"),
        ("half_life", -1.0, "half_life = .* cannot work"),
        ("floor", 0.0, "floor must be .*, not 0.0"),
        ("max_ratio", 0.5, "max_ratio must be .*, not 0.5"),
    ],
)
def test_bad_options_name_themselves(name: str, value: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BayesAggOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["silu", "softplus"])
def test_features_without_dead_units(
    activation: str, make: Callable[..., Run], tmp_path: Path
) -> None:
    run = make("ls", {}, {"activation": activation}, epochs=1)
    trainer = Trainer(run, tmp_path)
    trainer.train()
    (inputs, _) = next(iter(trainer.data.train.batches(34)))
    features = trainer.method.backbone(inputs).detach()
    assert bool((features != 0).any(0).all())
    with pytest.raises(SettingsError, match="activation = 'step' cannot work"):
        make("ls", {}, {"activation": "step"})
