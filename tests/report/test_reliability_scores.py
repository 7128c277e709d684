"""Calibration against torchmetrics, scikit-learn's definitions by hand, and its properties."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.digits.benchmark import Digits
from experiments.errors import DataError
from experiments.methods import MethodOptions
from experiments.run import Run
from experiments.scores.calibration import BINS, Calibration, tells_calibration
from experiments.settings import Settings
from experiments.training import Trainer


def measured(calibration: Calibration, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    for a, b in zip(outputs.split(37), targets.split(37), strict=True):
        calibration.update(a, b)
    return {name: value for name, value in calibration.compute().items() if value is not None}


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_classes_against_torchmetrics(scale: float) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    g = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(400, 5, generator=g)
    classes = torch.randint(5, (400, 1), generator=g)
    found = measured(Calibration(["face"], "classes"), logits, classes)
    p = logits.double().softmax(-1)
    ece = functional.multiclass_calibration_error(p, classes[:, 0], 5, n_bins=BINS)
    assert found["ECE face"] == pytest.approx(float(ece), abs=1e-6)
    nll = torch.nn.functional.cross_entropy(logits.double(), classes[:, 0])
    assert found["NLL face"] == pytest.approx(float(nll), rel=1e-12)
    one_hot = torch.nn.functional.one_hot(classes[:, 0], 5)
    assert found["Brier face"] == pytest.approx(float((p - one_hot).square().sum(1).mean()))


def test_a_binary_task_is_one_of_two_classes() -> None:
    g = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(300, 3, generator=g)
    targets = (torch.rand(300, 3, generator=g) < 0.3).float()
    found = measured(Calibration(["a", "b", "c"], "binary"), logits, targets)
    for k, name in enumerate("abc"):
        pair = torch.stack([torch.zeros(300), logits[:, k]], 1)
        alone = measured(Calibration(["x"], "classes"), pair, targets[:, k : k + 1].long())
        for figure in ("ECE", "Brier", "NLL"):
            assert found[f"{figure} {name}"] == pytest.approx(alone[f"{figure} x"], rel=1e-9)
    means = measured(Calibration(["a", "b", "c"], "binary", mean=True), logits, targets)
    assert means == {
        name: pytest.approx(sum(found[f"{name} {task}"] for task in "abc") / 3)
        for name in ("ECE", "Brier", "NLL")
    }


def test_what_was_not_observed_counts_nowhere() -> None:
    g = torch.Generator().manual_seed(2)
    logits, targets = torch.randn(90, 3, generator=g), torch.ones(90, 3)
    targets[::2, 0] = math.nan
    targets[:, 1] = math.nan
    calibration = Calibration(["a", "b", "c"], "binary")
    calibration.update(logits, targets)
    found = calibration.compute()
    alone = measured(Calibration(["a"], "binary"), logits[1::2, :1], targets[1::2, :1])
    for figure in ("ECE", "Brier", "NLL"):
        assert found[f"{figure} a"] == pytest.approx(alone[f"{figure} a"], rel=1e-9)
        assert found[f"{figure} b"] is None
    means = measured(Calibration(["a", "b", "c"], "binary", mean=True), logits, targets)
    assert means["NLL"] == pytest.approx(((found["NLL a"] or 0) + (found["NLL c"] or 0)) / 2)


def test_by_hand() -> None:
    """Two examples at 80 % of which one is right, and one at 99 % that is."""
    logits = torch.tensor([[math.log(4)], [math.log(4)], [-math.log(99)]])
    found = measured(Calibration(["x"], "binary"), logits, torch.tensor([[1.0], [0.0], [0.0]]))
    assert found["ECE x"] == pytest.approx((abs(1 - 1.6) + 0.01) / 3, rel=1e-5)
    assert found["Brier x"] == pytest.approx(2 * (0.04 + 0.64 + 0.0001) / 3, rel=1e-5)
    assert found["NLL x"] == pytest.approx(-math.log(0.8 * 0.2 * 0.99) / 3, rel=1e-5)


def test_certainty_costs_nothing_when_right_and_stays_finite_when_wrong() -> None:
    logits = torch.tensor([[800.0], [-800.0]])
    right = measured(Calibration(["x"], "binary"), logits, torch.tensor([[1.0], [0.0]]))
    assert right == {"ECE x": 0.0, "Brier x": 0.0, "NLL x": 0.0}
    wrong = measured(Calibration(["x"], "binary"), logits, torch.tensor([[0.0], [1.0]]))
    assert wrong == {"ECE x": 1.0, "Brier x": 2.0, "NLL x": 800.0}


def test_true_probabilities_are_calibrated() -> None:
    g = torch.Generator().manual_seed(2)
    logits = 1.5 * torch.randn(40_000, 1, generator=g)
    targets = (torch.rand(40_000, 1, generator=g) < logits.sigmoid()).float()
    honest = measured(Calibration(["x"], "binary"), logits, targets)
    assert honest["ECE x"] < 0.01
    for factor in (0.3, 4.0):
        bent = measured(Calibration(["x"], "binary"), factor * logits, targets)
        assert all(bent[name] > honest[name] for name in honest)


def test_lost_networks_and_empty_splits() -> None:
    found = measured(
        Calibration(["x"], "classes"), torch.full((3, 4), math.nan), torch.zeros(3, 1).long()
    )
    assert all(math.isnan(value) for value in found.values())
    with pytest.raises(DataError, match="empty split"):
        Calibration(["x"], "binary").compute()


def test_a_run_records_it(tmp_path: Path) -> None:
    settings = Settings(epochs=1, batch_size=128, device="cpu", head_bias=True)
    record = Trainer(Run(Digits(), "ls", MethodOptions(), settings), tmp_path).train()
    figures = record["best"]["test_figures"]
    assert {name for name in figures if tells_calibration(name)} == {
        f"{figure} {task}"
        for figure in ("ECE", "Brier", "NLL")
        for task in ("odd", "loop", "digit")
    }
    constant = record["constant"]["test_figures"]
    assert constant["NLL digit"] == pytest.approx(math.log(10), abs=0.05)
