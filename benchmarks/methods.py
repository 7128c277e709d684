"""A training step of every method at every level, against LS: ``python -m benchmarks.methods``.

Forward, backward and Adam on the benchmark's own network, batch and number of tasks, with random
data of the right shapes (what it holds does not change the time). The report reads the file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.step import problem
from benchmarks.timing import interleave
from experiments import methods
from experiments.files import prepare_folder, write_json
from experiments.methods import METHODS, Level, Method
from experiments.report.run_time import FILE

#: Every method of the paper's table of run times, at each of its levels; ensembles and STL are many
#: networks, which no step of theirs would tell.
PLACES: tuple[tuple[str, str], ...] = tuple(
    (name, level.key)
    for name, kind in METHODS.items()
    if name not in ("stl", *methods.ENSEMBLES)
    for level in kind.levels
    # At the parameters, an upper bound is the method itself.
    if not (name.endswith("-ub") and level is Level.PARAMETERS)
    if not (f"{name}-ub" in METHODS and level is Level.REPRESENTATION)
)
CASES = {"cifar": 160, "qm9": 64}
"""Features of the networks of `benchmarks.step`."""

_OPTIONS = {
    "cifar": {"bayesagg": {"pretrain": 1, "power": 5e-4, "prior_variance": 5e-4}},
    "qm9": {"bayesagg": {"pretrain": 1, "power": 0.85}},
}


_LS = "ls@losses"
_SLOW = f"@{Level.PARAMETERS.key}"


def run(
    rounds: int = 20,
    warmup: int = 1,
    cases: Sequence[str] = tuple(CASES),
    places: Sequence[tuple[str, str]] = PLACES,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Time all methods in turns.

    Args:
        rounds: Measurements of each; a quarter of it, but at least 3, of methods that go through
            the backbone once per task.
        warmup: Unmeasured steps of each.
        cases: "cifar" (20 binary tasks, 160 features), "qm9" (11 regressions, 64 features).
        places: Methods and levels; LS among them.
        seed: Of weights and data.
        device: Where.

    Returns:
        ``rows`` with, for each case, ``seconds`` (median) and ``over_ls`` (median, low, high).
    """
    rows: list[dict[str, Any]] = [{"method": name, "level": level} for name, level in places]
    few = max(3, rounds // 4)
    for case in cases:
        steps = {
            f"{name}@{level}": _step(case, name, level, seed, device) for name, level in places
        }
        slow = {name: step for name, step in steps.items() if name.endswith(_SLOW)}
        fast = {name: step for name, step in steps.items() if name not in slow}
        timings = interleave(fast, rounds=rounds, warmup=warmup)
        slowly = interleave({_LS: steps[_LS], **slow}, rounds=few, warmup=warmup)
        for row in rows:
            label = f"{row['method']}@{row['level']}"
            own = slowly if label in slow else timings
            row[case] = {"seconds": own.median(label), "over_ls": list(own.ratio(label, _LS))}
    place = torch.cuda.get_device_name() if device != "cpu" else f"{os.cpu_count()} CPU cores"
    return {
        "machine": f"{place}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "rounds": rounds,
        "rounds_of_parameters": few,
        "rows": rows,
    }


def _step(case: str, name: str, level: str, seed: int, device: str) -> Callable[[], None]:
    of = problem(case, device, seed)
    kind = methods.find(name)
    chosen = {"level": level} if len(kind.levels) > 1 else {}
    options = methods.options(name, chosen, _OPTIONS[case])
    heads = {name: head.to(device) for name, head in of.heads(CASES[case]).items()}
    method: Method = methods.make(name, of.backbone(), heads, options)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-3)
    method.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        method.backward(of.inputs, of.targets)
        optimizer.step()

    method.start_epoch(0)
    step()
    method.end_epoch(0)
    method.start_epoch(1)  # past the pre-training, where a method has one
    return step


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results") / FILE, help="file for it")
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each (20)")
    parser.add_argument("--case", choices=list(CASES), help="one of the two; default: both")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, ...")
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)  # before minutes of work, not after
    cases = [options.case] if options.case else list(CASES)
    result = run(options.rounds, cases=cases, device=options.device)
    write_json(options.out, result)
    for row in result["rows"]:
        text = "  ".join(
            f"{case} {1e3 * row[case]['seconds']:8.1f} ms, {row[case]['over_ls'][0]:6.2f} × LS"
            for case in cases
        )
        print(f"{row['method']:<16} {row['level']:<15} {text}")
    print(f"written to {options.out}; python -m experiments report {options.out.parent} shows it")


if __name__ == "__main__":
    main()
