"""A thousand binary tasks on one head: memory and time of a Bayesian step.

``python -m benchmarks.many_tasks --structure full``. Dense posteriors go through in chunks of
tasks, with the prior kept in float32; diagonal ones in chunks of examples.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads, inference, priors


def run(
    structure: str = "diag", tasks: int = 1000, size: int = 512, batch: int = 256, seed: int = 0
) -> dict[str, Any]:
    """One prior from four batches, then one step; MiB above what the process had before.

    Args:
        structure: Of the curvature, "full" or "diag".
        tasks: T.
        size: d.
        batch: B.
        seed: Seed of features and targets.
    """
    torch.manual_seed(seed)
    features = torch.nn.functional.relu(torch.randn(4 * batch, size))
    targets = (torch.rand(4 * batch, tasks) < 0.1).float()
    before = _peak_mebibytes()
    mtl = ba.BayesAgg(
        {"labels": heads.Bernoulli(size, tasks=tasks)},
        aggregation.PrecisionWeighted.paper(power=5e-4),
        inference=inference.TaylorGGN("full" if structure == "full" else "diag"),
        prior=priors.FullData(dtype=torch.float32),
    )
    for rows in torch.arange(4 * batch).split(batch):
        mtl.collect(features[rows], {"labels": targets[rows]})
    began = time.perf_counter()
    mtl.update_prior()
    made = time.perf_counter()
    mtl.start_bayes()
    mtl.eval()
    inputs = features[:batch].clone().requires_grad_()
    mtl.backward(inputs, {"labels": targets[:batch]})
    return {
        "structure": structure,
        "tasks": tasks,
        "prior_seconds": made - began,
        "step_seconds": time.perf_counter() - made,
        "peak_mebibytes": _peak_mebibytes() - before,
        "threads": torch.get_num_threads(),
    }


def _peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tasks", description=__doc__)
    parser.add_argument("--structure", choices=["full", "diag"], default="diag")
    parser.add_argument("--tasks", type=int, default=1000)
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.structure, options.tasks), indent=2))


if __name__ == "__main__":
    main()
