"""The head stage alone, against plain losses and the published algorithm.

``python -m benchmarks.head_stage``. The stage is everything between the features and their
gradient: posterior, moments, aggregation, head losses.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads
from benchmarks.published import published_binary_step
from benchmarks.timing import interleave, peak_memory

#: Of the rule, and functions at each of its nodes: two exponentials, a logarithm, a sigmoid.
_NODES, _FUNCTIONS = 28, 4
#: Tensors [T, B, d] that are written or read: covariance, mean, variance, weights, and the last
#: three once more for the direction.
_PASSES = 7


def floor(batch: int, tasks: int, size: int) -> dict[str, float]:
    """Seconds of each part of a stage of binary tasks, and their "sum", as fast as can be.

    Counted is what the stage cannot do without, each at the rate that is reached on it alone:
    multiplications of the algebra of T precisions of size D (as those of a matrix product of that
    size), transcendental functions of the quadrature, and passes over tensors [T, B, d].

    Args:
        batch: B.
        tasks: T.
        size: d; a bias makes it D = d + 1.
    """
    wide = size + 1
    # Σ ω h hᵀ (half of it), its factor and that one's inverse, and S h by two triangles.
    products = tasks * (batch * wide**2 + 2 / 3 * wide**3 + 2 * batch * wide**2)
    functions = _FUNCTIONS * _NODES * tasks * batch
    numbers = _PASSES * tasks * batch * size
    square = torch.randn(wide, wide, dtype=torch.float64)
    points = torch.randn(2**15, dtype=torch.float64)
    tensor = torch.randn(tasks, batch, size)
    product, function, moved = (torch.empty_like(x) for x in (square, points, tensor))
    parts = {
        "algebra": products * _seconds(lambda: torch.mm(square, square, out=product)) / 2 / wide**3,
        "functions": functions
        * _seconds(lambda: torch.sigmoid(points, out=function))
        / points.numel(),
        "tensors": numbers * _seconds(lambda: moved.copy_(tensor)) / (2 * tensor.numel()),
    }
    return parts | {"sum": sum(parts.values())}


def _seconds(call: Callable[[], object], repeats: int = 30) -> float:
    """A typical fast one: others only ever slow it down."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return float(np.quantile(found, 0.25))


#: name: (batch, tasks, features)
SIZES = {"qm9": (120, 11, 64), "cifar": (128, 20, 160)}


def run(case: str = "qm9", rounds: int = 30, warmup: int = 5, seed: int = 0) -> dict[str, Any]:
    """Time the stage, its baseline and its rivals in turns.

    Args:
        case: "qm9" (Gaussian head) or "cifar" (Bernoulli head).
        rounds: Measurements of each.
        warmup: Unmeasured calls of each.
        seed: Seed of features and targets.

    Returns:
        Median seconds, ratios to the plain losses, and peak bytes of tensors of each; for "cifar"
        the ``floor`` of the stage too.
    """
    torch.manual_seed(seed)
    batch, tasks, size = SIZES[case]
    features = F.relu(torch.randn(batch, size)).requires_grad_()
    binary = case == "cifar"
    targets = (torch.rand(batch, tasks) < 0.1).float() if binary else torch.randn(batch, tasks)
    calls = {
        "plain losses": _engine(features, targets, binary, bayes=False),
        "bayesagg": _engine(features, targets, binary),
    }
    if binary:
        sampled = gradients.MonteCarlo(1024, generator=torch.Generator().manual_seed(0))
        calls["bayesagg, Monte Carlo 1024"] = _engine(features, targets, binary, sampled)
        calls["published algorithm, 1024"] = published_binary_step(features, targets)
    slow = max(3, rounds // 10)
    timings = interleave(calls, rounds=slow if binary else rounds, warmup=2 if binary else warmup)
    fast = interleave(dict(list(calls.items())[:2]), rounds=rounds, warmup=warmup)
    return {
        "case": case,
        "seconds": {name: timings.median(name) for name in calls}
        | {name: fast.median(name) for name in list(calls)[:2]},
        "over_plain": {name: list(timings.ratio(name, "plain losses")) for name in calls},
        "peak_bytes": {name: peak_memory(call) for name, call in calls.items()},
        "floor": floor(batch, tasks, size) if binary else None,
        "threads": torch.get_num_threads(),
    }


def _engine(
    features: Tensor,
    targets: Tensor,
    binary: bool,
    estimator: gradients.Estimator | None = None,
    *,
    bayes: bool = True,
) -> Callable[[], None]:
    size, tasks = features.shape[1], targets.shape[1]
    head = heads.Bernoulli(size, tasks) if binary else heads.Gaussian(size, tasks)
    power = 5e-4 if binary else 0.85
    mtl = ba.BayesAgg(
        {"tasks": head}, aggregation.PrecisionWeighted.paper(power=power), estimator=estimator
    )
    mtl.collect(features.detach(), {"tasks": targets})
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    mtl.eval()  # an epoch's examples are not kept

    def call() -> None:
        features.grad = None
        mtl.zero_grad()
        mtl.backward(features, {"tasks": targets})

    return call


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.head_stage", description=__doc__)
    parser.add_argument("--case", choices=list(SIZES), default="qm9")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.case, options.rounds), indent=2))


if __name__ == "__main__":
    main()
