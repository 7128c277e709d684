"""A whole training step, Bayesian against linear scalarisation: ``python -m benchmarks.step``.

Forward, backward and Adam on the benchmark's own network and sizes. The baseline is what a user
would write: one linear layer and a mean squared error (or a binary cross-entropy) per task.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads
from benchmarks.network import random_groups
from benchmarks.timing import interleave
from models import CifarNetwork, MessagePassing

__all__ = ["run"]


def run(case: str = "qm9", rounds: int = 20, warmup: int = 3, seed: int = 0) -> dict[str, Any]:
    """Time both kinds of step in turns.

    Args:
        case: "qm9" (batch 120, 11 regressions, 64 features) or "cifar" (batch 128, 20 binary
            tasks, 160 features).
        rounds: Measurements of each.
        warmup: Unmeasured calls of each.
        seed: Seed of weights and data.
    """
    torch.manual_seed(seed)
    if case == "qm9":
        steps = _steps(MessagePassing, random_groups(120), torch.randn(120, 11), binary=False)
    else:
        targets = F.one_hot(torch.randint(20, (128,)), 20).float()
        steps = _steps(CifarNetwork, torch.rand(128, 3, 32, 32), targets, binary=True)
    timings = interleave(steps, rounds=rounds, warmup=warmup)
    return {
        "case": case,
        "bayesagg_over_ls": list(timings.ratio("bayesagg", "ls")),
        "seconds": {name: timings.median(name) for name in steps},
        "threads": torch.get_num_threads(),
    }


def _steps(
    backbone: Callable[[], nn.Module], inputs: Any, targets: Tensor, *, binary: bool
) -> dict[str, Callable[[], None]]:
    tasks = targets.shape[1]

    plain = backbone()
    with torch.no_grad():
        size = plain(inputs).shape[1]
    linear = nn.Linear(size, tasks, bias=binary)
    optimizer = torch.optim.Adam([*plain.parameters(), *linear.parameters()], lr=1e-3)
    loss = F.binary_cross_entropy_with_logits if binary else F.mse_loss

    def ls() -> None:
        optimizer.zero_grad()
        (loss(linear(plain(inputs)), targets) * tasks).backward()
        optimizer.step()

    network = backbone()
    head = heads.Bernoulli(size, tasks) if binary else heads.Gaussian(size, tasks)
    power = 5e-4 if binary else 0.85
    mtl = ba.BayesAgg({"tasks": head}, aggregation.PrecisionWeighted.paper(power=power))
    own = torch.optim.Adam([*network.parameters(), *mtl.parameters()], lr=1e-3)
    for _ in range(4):
        mtl.collect(network(inputs).detach(), {"tasks": targets})
    mtl.update_prior()
    mtl.start_bayes()

    def bayesagg() -> None:
        own.zero_grad()
        mtl.backward(network(inputs), {"tasks": targets})
        own.step()

    return {"ls": ls, "bayesagg": bayesagg}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--case", choices=["qm9", "cifar"], default="qm9")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.case, options.rounds), indent=2))


if __name__ == "__main__":
    main()
