"""Step ratios on a card, eager, captured and compiled: ``python -m benchmarks.gpu``.

A whole training step, Bayesian over LS, on QM9, CIFAR and the dense benchmark, in under eight
minutes: what does not fit into them is left out, and said to be. ``--device cpu`` runs what a CPU
can, which tests all but the card. Written are JSON and a page with the card's name.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.step import CASES, problem, steps
from benchmarks.timing import interleave
from experiments.files import prepare_folder, write_json, write_text
from experiments.training.graphs import CompileBackend, CudaBackend, TwinBackend

#: How a step runs: from Python, as one replayed CUDA graph, from Python with a compiled network.
MODES = ("eager", "captured", "compiled")
#: What captured steps are meant to reach.
TARGET = 1.10


def run(
    device: torch.device | str = "cuda",
    cases: tuple[str, ...] = tuple(CASES),
    rounds: int = 30,
    minutes: float = 6.0,
) -> dict[str, Any]:
    """Time all cases, cheapest modes first.

    Args:
        device: "cuda", or "cpu" for the eager steps alone.
        cases: Names of `benchmarks.step.CASES`.
        rounds: Measurements of each step, in turns.
        minutes: After which nothing new is begun.

    Returns:
        ``rows``: case, mode, median seconds, ratio with an interval; ``left_out``: what, and why.

    Raises:
        ValueError: There is no such device.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device here; --device cpu runs the eager steps alone")
    end = time.monotonic() + 60 * minutes
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    for mode in MODES:
        for case in cases:
            why = None
            if device.type != "cuda" and mode != "eager":
                why = "needs a CUDA device"
            elif time.monotonic() > end:
                why = f"{minutes:g} minutes were over"
            else:
                try:
                    rows.append(_measure(case, mode, device, rounds, end))
                except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                    why = str(error).strip().splitlines()[0]
            if why is not None:
                left_out.append({"case": case, "mode": mode, "why": why})
    return {
        "device": _name(device),
        "torch": torch.__version__,
        "rounds": rounds,
        "rows": rows,
        "left_out": left_out,
    }


def _measure(case: str, mode: str, device: torch.device, rounds: int, end: float) -> dict[str, Any]:
    pairs = steps(problem(case, device), capturable=mode == "captured")
    calls = {name: _ready(mode, device, *pair) for name, pair in pairs.items()}
    begin = time.perf_counter()
    for call in calls.values():  # a compiler works on the first
        call()
    each = max(time.perf_counter() - begin, 1e-4) if mode == "eager" else 0.0
    if each:  # slow devices get fewer rounds, so that others have their turn
        rounds = max(3, min(rounds, int(0.2 * max(0.0, end - time.monotonic()) / each)))
    timings = interleave(calls, rounds=rounds, warmup=3 if device.type == "cuda" else 1)
    return {
        "case": case,
        "mode": mode,
        "rounds": rounds,
        "seconds": {name: timings.median(name) for name in calls},
        "bayesagg_over_ls": list(timings.ratio("bayesagg", "ls")),
    }


def _ready(
    mode: str, device: torch.device, network: nn.Module, step: Callable[[], None]
) -> Callable[[], None]:
    """The step as that mode runs it."""
    if mode == "eager":
        return step
    if mode == "captured":
        return _captured(CudaBackend(device), step)
    active = CompileBackend(network).active()

    def compiled() -> None:
        step()

    active.__enter__()  # the network is this benchmark's own, and stays compiled
    return compiled


def _captured(backend: TwinBackend, step: Callable[[], None]) -> Callable[[], None]:
    """Replays of one capture."""
    with backend.active():
        for _ in range(backend.warm_up):
            step()
        graph = backend.capture(step)

    def replay() -> None:
        with backend.active():
            graph()

    return replay


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def table(result: dict[str, Any]) -> str:
    """The page, Markdown."""
    lines = [
        f"# Steps on {result['device']}",
        "",
        "A whole training step (forward, backward, Adam), Bayesian over LS, medians of interleaved",
        f"rounds with 95 % intervals; torch {result['torch']}. Captured steps are meant to stay",
        f"within {TARGET:.2f}. Made by `python -m benchmarks.gpu`.",
        "",
        "| benchmark | mode | LS, ms | BayesAgg, ms | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        ls, ours = (1e3 * row["seconds"][name] for name in ("ls", "bayesagg"))
        ratio, low, high = row["bayesagg_over_ls"]
        shown = f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(f"| {row['case']} | {row['mode']} | {ls:.2f} | {ours:.2f} | {shown} |")
    if result["left_out"]:
        lines += ["", "Left out:", ""]
        lines += [f"- {one['case']}, {one['mode']}: {one['why']}" for one in result["left_out"]]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    parser.add_argument("--page", type=Path, help="docs/gpu.md on a card, beside --out elsewhere")
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)
    try:
        result = run(options.device, tuple(options.cases), options.rounds, options.minutes)
    except ValueError as error:
        parser.error(str(error))
    card = torch.device(options.device).type == "cuda"
    page = options.page or (Path("docs/gpu.md") if card else options.out.with_suffix(".md"))
    write_json(options.out, result)
    write_text(page, table(result))
    print(table(result))


if __name__ == "__main__":
    main()
