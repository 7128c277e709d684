"""The digits: parts, targets, and a network that learns them in seconds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from experiments import methods
from experiments.digits.benchmark import TASKS, Digits, read
from experiments.errors import SettingsError
from experiments.run import Run
from experiments.training import Trainer

pytest.importorskip("sklearn")

CPU = torch.device("cpu")


def test_the_set_is_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    images, digits = read()
    loaded = load_digits()
    assert torch.equal(images, torch.tensor(loaded.images, dtype=torch.float32))
    assert torch.equal(digits, torch.tensor(loaded.target))


def test_parts_and_targets() -> None:
    data = Digits().load(CPU)
    assert (len(data.train), len(data.validation), len(data.test)) == (1079, 359, 359)
    seen = []
    for part in (data.train, data.validation, data.test):
        batches = list(part.batches(100, torch.Generator().manual_seed(0)))
        targets = {k: torch.cat([b.targets[k] for b in batches]) for k in batches[0].targets}
        digit = targets["classes"][:, 0]
        assert torch.equal(targets["binary"][:, 0], (digit % 2).float())
        assert torch.equal(targets["binary"][:, 1] > 0, (digit == 0) | (digit == 6) | (digit > 7))
        slope = (digit.float() - digit.float().mean()) @ targets["regression"][:, 0]
        assert slope > 0
        seen.append(torch.cat([b.inputs for b in batches]))
        assert seen[-1].abs().max() <= 1
    assert len(torch.cat(seen).unique(dim=0)) == 1797  # all images are different
    train = torch.cat([b.targets["regression"] for b in data.train.batches(2000)])
    assert train.mean().abs() < 1e-6
    assert train.std() == pytest.approx(1.0)


@pytest.mark.parametrize("task", [None, *TASKS])
def test_one_task_alone_or_all(task: str | None) -> None:
    benchmark = Digits(only=task)
    data = benchmark.load(CPU)
    heads = benchmark.heads(True)
    batch = next(iter(data.train.batches(8)))
    assert list(batch.targets) == list(heads) == list(data.constants)
    features = benchmark.backbone()(batch.inputs)
    for name, head in heads.items():
        assert head.loss(head(features), batch.targets[name]).shape == (8, head.tasks)
    assert sum(head.tasks for head in heads.values()) == len(benchmark.tasks)
    assert len(benchmark.tasks) == (4 if task is None else 1)


def test_it_is_learned_in_seconds(tmp_path: Path) -> None:
    benchmark = Digits()
    settings = dataclasses.replace(benchmark.default_settings, epochs=12, device="cpu")
    run = Run(benchmark, "ls", methods.options("ls", {}), settings)
    record = Trainer(run, tmp_path).train()
    test, constant = record["best"]["test"], record["constant"]["test"]
    assert test["digit"] > 90
    assert test["odd"] > 90 > constant["odd"] + 30
    assert test["loop"] > 90 > constant["loop"] + 20
    assert test["number"] < 0.25 * constant["number"]
    assert constant["digit"] < 20


def test_options_are_checked() -> None:
    with pytest.raises(SettingsError, match=r"task = 'even'.*number, odd, loop, digit"):
        Digits(only="even")
    with pytest.raises(SettingsError, match="width = 0"):
        Digits(width=0)
