"""A Bayesian step over a warm-up step, by the size of the head: ``python -m benchmarks.costs``.

Default scheme and estimator of each head, on a backbone of one linear layer. Where one size grows,
the exponent of the growth is fitted to the last three sizes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from benchmarks.timing import interleave
from experiments.files import prepare_folder, write_json

__all__ = ["CASES", "run"]


def _binary(tasks: int, size: int) -> dict[str, heads.Head]:
    return {"y": heads.Bernoulli(size, tasks)}


def _softmax(classes: int, size: int) -> dict[str, heads.Head]:
    return {"y": heads.Categorical(size, classes)}


#: name: (examples, features, heads); the growth of a family is that of its number.
CASES: dict[str, tuple[int, int, Callable[[int], dict[str, heads.Head]]]] = {
    "11 regressions (QM9)": (120, 64, lambda d: {"y": heads.Gaussian(d, 11)}),
    "20 binary (CIFAR)": (128, 160, lambda d: {"y": heads.Bernoulli(d, 20)}),
    **{f"{n} binary": (128, 64, partial(_binary, n)) for n in (1, 10, 100, 300)},
    **{f"{n} classes": (50, 32, partial(_softmax, n)) for n in (3, 10, 20, 30, 100, 300)},
    "3,456 pixels": (
        3456,
        64,
        lambda d: {
            "segments": heads.Categorical(d, 13),
            "depth": heads.Gaussian(d),
            "normals": heads.Gaussian(d, 3),
        },
    ),
}
#: Sizes that grow under one scheme, and the term that the growth should be that of.
_FAMILIES = {
    "binary": ("full", "tasks: quadrature and P^3 algebra for each, exponent 1"),
    "classes": ("kron", "classes: C x points for each example, C^2 turns of them, exponent 1 to 2"),
}


def run(rounds: int = 10, seed: int = 0) -> dict[str, Any]:
    """Time every case.

    Args:
        rounds: Measurements of each step.
        seed: Of weights and data.

    Returns:
        ``rows``: name, scheme, seconds of both steps, their ratio with an interval; ``growth``.
    """
    rows = []
    for name, (examples, size, make) in CASES.items():
        torch.manual_seed(seed)
        inputs = torch.randn(examples, size)
        own = make(size)
        targets = {n: _targets(head, examples) for n, head in own.items()}
        engines = [_step(make(size), inputs, targets, bayes) for bayes in (False, True)]
        timings = interleave(dict(zip(("ls", "bayesagg"), engines, strict=True)), rounds=rounds)
        schemes = ba.BayesAgg(own).schemes
        rows.append(
            {
                "case": name,
                "schemes": ", ".join(dict.fromkeys(map(repr, schemes.values()))),
                "seconds": {n: timings.median(n) for n in ("ls", "bayesagg")},
                "over_ls": list(timings.ratio("bayesagg", "ls")),
            }
        )
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
        "growth": {
            term: _exponent([row for row in rows if scheme in row["schemes"]], family)
            for family, (scheme, term) in _FAMILIES.items()
        },
    }


def _targets(head: heads.Head, examples: int) -> Tensor:
    if isinstance(head, heads.Categorical):
        return torch.randint(head.classes, (examples, head.tasks))
    values = torch.randn(examples, head.tasks)
    return values if isinstance(head, heads.Gaussian) else (values > 1).float()


def _step(
    own: Mapping[str, heads.Head], inputs: Tensor, targets: Mapping[str, Tensor], bayes: bool
) -> Callable[[], None]:
    backbone = nn.Linear(inputs.shape[1], inputs.shape[1])
    mtl = ba.BayesAgg(own)
    mtl.collect(backbone(inputs).detach(), targets)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    mtl.eval()  # an epoch's examples are not kept

    def step() -> None:
        backbone.zero_grad()
        mtl.zero_grad()
        mtl.backward(backbone(inputs), targets)

    return step


def _exponent(rows: list[dict[str, Any]], family: str) -> float:
    """Of the Bayesian step's time in the number that its name begins with, last three sizes."""
    sizes = [
        (int(first), row["seconds"]["bayesagg"])
        for row in rows
        for first, rest in [row["case"].split(" ", 1)]
        if rest == family
    ]
    number, seconds = np.log(np.array(sizes[-3:])).T
    return float(np.polyfit(number, seconds, 1)[0])


def table(result: dict[str, Any]) -> str:
    """As Markdown."""
    lines = ["| head | scheme | LS, ms | BayesAgg, ms | ratio |", "| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        ls, ours = (1e3 * row["seconds"][n] for n in ("ls", "bayesagg"))
        ratio, low, high = row["over_ls"]
        shown = f"{ratio:.1f} [{low:.1f}, {high:.1f}]"
        lines.append(f"| {row['case']} | `{row['schemes']}` | {ls:.1f} | {ours:.1f} | {shown} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/costs.json"))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)
    result = run(options.rounds)
    write_json(options.out, result)
    print(table(result))
    print("growth:", {name: round(value, 2) for name, value in result["growth"].items()})


if __name__ == "__main__":
    main()
