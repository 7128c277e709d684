"""QM9 as a benchmark, on a few dozen real molecules."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.methods import BayesAggOptions, MethodOptions
from experiments.qm9.benchmark import HEAD, Qm9
from experiments.qm9.targets import BENCHMARK
from experiments.randomness import isolated_random
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer
from experiments.training.evaluation import evaluate, evaluate_constant
from tests.experiments.conftest import TABLES
from tests.experiments.toy import equal

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))


def make(method: str = "ls", epochs: int = 2, **changes: Any) -> Run:
    small = {"molecules": 34, "validation": 3, "test": 3, "data": str(TABLES)}
    benchmark = Qm9(**small | {"width": 8, "edge_width": 8, "passes": 2} | changes)
    options = {"ls": MethodOptions(), "bayesagg": BayesAggOptions(pretrain=1, prior_variance=1.0)}
    settings = Settings(epochs=epochs, batch_size=10, device="cpu")
    return Run(benchmark, method, options[method], settings)


def test_errors_are_in_published_units() -> None:
    """A constant error of one standard deviation, by hand from the tables' own values."""
    run = make()
    data = run.benchmark.load(CPU)
    meter = data.meter()
    targets = torch.cat([batch.targets[HEAD] for batch in data.train.batches(10)])
    meter.update({HEAD: targets + 1}, {HEAD: targets})
    from experiments.qm9 import load, prepare

    prepared = prepare(load(path=TABLES), seed=0, molecules=34, validation=3, test=3)
    raw = prepared.scale.inverse(targets.double())
    factor = torch.tensor([p.reported_factor for p in BENCHMARK], dtype=torch.float64)
    torch.testing.assert_close(
        torch.tensor(meter.compute(), dtype=torch.float64), raw.std(0) * factor, rtol=1e-4, atol=0
    )
    assert factor.tolist() == [1, 1, 1000, 1000, 1, 1000, 1000, 1000, 1000, 1000, 1]


def test_predicting_the_mean() -> None:
    data = make().benchmark.load(CPU)
    train = torch.cat([batch.targets[HEAD] for batch in data.train.batches(10)]).double()
    test = torch.cat([batch.targets[HEAD] for batch in data.test.batches(10)]).double()
    meter = data.meter()
    meter.update({HEAD: train.mean(0).expand_as(test)}, {HEAD: test})
    found = evaluate_constant(data, data.test, 2)
    assert list(found.values) == pytest.approx(meter.compute(), rel=1e-4)


@pytest.mark.parametrize(("network", "apart"), [("pyg", 1e-4), ("bfloat16", 5e-3)])
def test_all_forms_of_the_network_train_alike(network: str, apart: float, tmp_path: Path) -> None:
    if network == "pyg":
        pytest.importorskip("torch_geometric")
    records = [
        Trainer(make(network=kind), tmp_path / kind).train() for kind in ("factorised", network)
    ]
    for a, b in zip(*(record["history"] for record in records), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=apart)
        assert a["validation"] == pytest.approx(b["validation"], rel=10 * apart)


def test_memory_is_constant_over_evaluations() -> None:
    run = make("bayesagg")
    data = run.benchmark.load(CPU)
    with isolated_random(CPU):
        method = run.build(CPU)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    evaluate(method, data, data.validation, 2)
    before = tensors()
    for _ in range(10):
        evaluate(method, data, data.validation, 2)
    assert tensors() <= before


def test_evaluation_leaves_the_method_alone() -> None:
    run = make("bayesagg")
    data = run.benchmark.load(CPU)
    with isolated_random(CPU):
        method = run.build(CPU)
    method.train()
    for batch in data.train.batches(10):
        method.backward(batch.inputs, batch.targets)
    before = copy.deepcopy(method.state_dict()["mtl"])
    grads = [p.grad.clone() for p in method.backbone.parameters() if p.grad is not None]
    evaluate(method, data, data.test, 2)
    after = method.state_dict()["mtl"]
    assert method.backbone.training
    equal(before, after)
    for parameter, grad in zip(method.backbone.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)
