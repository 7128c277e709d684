"""What goes to a spawned process and back; not collected with the suite, as it starts one."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from experiments.digits.benchmark import Digits
from experiments.methods import MethodOptions
from experiments.run import Run
from experiments.settings import Settings


def _step(engine: Any, features: torch.Tensor, targets: Any, run: Run) -> Any:
    features = features.clone().requires_grad_()
    engine.backward(features, targets)
    return features.grad, engine, run


def test_an_engine_its_posteriors_and_a_run_go_there_and_back() -> None:
    torch.manual_seed(0)
    engine = ba.BayesAgg({"y": heads.Gaussian(3, tasks=2), "k": heads.Categorical(3, classes=4)})
    x = torch.randn(32, 3)
    targets = {"y": torch.randn(32, 2), "k": torch.randint(4, (32, 1))}
    engine.backward(x.clone().requires_grad_(), targets)
    engine.update_prior()
    engine.start_bayes()
    run = Run(Digits(), "ls", MethodOptions(), Settings(epochs=1, device="cpu"))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        grad, back, same = pool.apply(_step, (engine, x, targets, run))
    expected, engine, _ = _step(engine, x, targets, run)
    assert torch.equal(grad, expected)
    assert same == run
    ours, theirs = engine.predict(x), back.predict(x)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
