"""A batch in pieces: how far plain micro-batches are from its step, and what the exact one costs.

``python -m benchmarks.pieces``. The difference is that of the backbone's gradient on scikit-learn's
digits (a regression, two binary tasks, ten classes) after some epochs; time and memory are those of
CIFAR's network with twenty binary tasks, every way in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads
from benchmarks.timing import interleave, peak_memory
from models import CifarNetwork

RULES: dict[str, Callable[[], aggregation.Aggregation]] = {
    "mean of the tasks": aggregation.Mean,
    "per task (default)": aggregation.PrecisionWeighted,
    "per dimension": lambda: aggregation.PrecisionWeighted(resolution="dimension"),
    "per example, power 0.5": lambda: aggregation.PrecisionWeighted.paper(0.5),
}


def difference(pieces: int, batch: int = 128, epochs: int = 4, seed: int = 0) -> dict[str, float]:
    """Relative difference between the sum of micro-batches' updates and the batch's, by rule.

    Args:
        pieces: how many micro-batches.
        batch: examples in all of them.
        epochs: of training before, the first of them the warm-up.
        seed: of weights and batches.

    Returns:
        Median over batches of ‖Σ of the micro-batches' gradients / pieces − g‖ / ‖g‖.
    """
    return {name: _difference(rule(), pieces, batch, epochs, seed) for name, rule in RULES.items()}


def _difference(
    rule: aggregation.Aggregation, pieces: int, batch: int, epochs: int, seed: int
) -> float:
    torch.manual_seed(seed)
    digits = load_digits()
    x, digit = torch.tensor(digits.data / 16.0), torch.tensor(digits.target)
    loop = torch.isin(digit, torch.tensor([0, 6, 8, 9]))
    y: dict[str, Tensor] = {
        "number": ((digit - 4.5) / 2.9)[:, None].double(),
        "binary": torch.stack([digit % 2 == 1, loop], 1).double(),
        "digit": digit,
    }
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).double()
    made = {
        "number": heads.Gaussian(32, bias=True),
        "binary": heads.Bernoulli(32, 2),
        "digit": heads.Categorical(32, 10),
    }
    mtl = ba.BayesAgg(made, rule, warmup_epochs=1).double()
    weights = list(backbone.parameters())
    optimizer = torch.optim.Adam([*weights, *mtl.parameters()], lr=3e-3)

    def gradient(rows: Tensor, *, collect: bool) -> Tensor:
        optimizer.zero_grad()
        mtl.backward(backbone(x[rows]), {k: v[rows] for k, v in y.items()}, collect=collect)
        return torch.cat([w.grad.flatten() for w in weights if w.grad is not None])

    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            gradient(rows, collect=True)
            optimizer.step()
        mtl.update_prior()
    found = []
    for rows in torch.randperm(len(x)).split(batch):
        if len(rows) == batch:
            whole = gradient(rows, collect=False)
            parts = sum(gradient(part, collect=False) for part in rows.chunk(pieces)) / pieces
            found.append((parts - whole).norm() / whole.norm())
    return torch.stack(found).median().item()


def cost(pieces: int, rounds: int = 10, batch: int = 128) -> dict[str, Any]:
    """Time and memory of a step on CIFAR's network: whole, exact in pieces, plain micro-batches."""
    torch.manual_seed(0)
    x, y = torch.rand(batch, 3, 32, 32), F.one_hot(torch.randint(20, (batch,)), 20).float()
    network = CifarNetwork()
    with torch.no_grad():
        size = network(x[:2]).shape[1]
    mtl = ba.BayesAgg({"class": heads.Bernoulli(size, 20)})
    mtl.collect(network(x).detach(), {"class": y})
    mtl.update_prior()
    mtl.start_bayes()
    parts = [(a, {"class": b}) for a, b in zip(x.chunk(pieces), y.chunk(pieces), strict=True)]

    def plain() -> None:
        for inputs, targets in parts:
            mtl.backward(network(inputs), targets)

    ways: dict[str, Callable[[], object]] = {
        "whole": lambda: mtl.backward(network(x), {"class": y}),
        "exact": lambda: mtl.backward_in_pieces(network, parts),
        "plain": plain,
    }
    timings = interleave(ways, rounds=rounds)
    return {
        "seconds": {name: timings.median(name) for name in ways},
        "exact_over_whole": list(timings.ratio("exact", "whole")),
        "exact_over_plain": list(timings.ratio("exact", "plain")),
        "peak_mib": {name: peak_memory(call) / 2**20 for name, call in ways.items()},
        "threads": torch.get_num_threads(),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__)
    parser.add_argument("--pieces", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    print(json.dumps({"relative difference": difference(options.pieces)}, indent=2))
    print(json.dumps(cost(options.pieces, options.rounds), indent=2))


if __name__ == "__main__":
    main()
