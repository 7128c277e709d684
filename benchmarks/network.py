"""The QM9 network with and without edge matrices, and with messages of fewer digits.

``python -m benchmarks.network``

Forward and backward of one batch of random molecules whose sizes follow QM9's distribution (what
the features hold does not change the time). The conversion to torch-geometric's batch is not timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import interleave, peak_memory
from experiments.files import write_json
from models import MessagePassing, MessagePassingPyG, PaddedGraphs, pad, to_geometric

# Molecules with so many atoms, among QM9's 130,831.
QM9_SIZES = {
    3: 2, 4: 4, 5: 5, 6: 12, 7: 20, 8: 65, 9: 172, 10: 483, 11: 1053, 12: 2189, 13: 4027,
    14: 6758, 15: 10216, 16: 13824, 17: 16969, 18: 17442, 19: 18146, 20: 12403, 21: 13166,
    22: 4428, 23: 6362, 24: 712, 25: 1923, 26: 59, 27: 356, 29: 35,
}  # fmt: skip


def random_groups(batch: int = 120, groups: int = 4, seed: int = 0) -> list[PaddedGraphs]:
    """Random molecules of QM9's sizes, sorted and cut into groups of equal count."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(list(QM9_SIZES.values()), dtype=torch.float64)
    drawn = torch.multinomial(counts, batch, replacement=True, generator=generator)
    sizes = torch.tensor(list(QM9_SIZES))[drawn].sort().values
    return [
        pad(
            [
                (
                    torch.rand(int(n), 11, generator=generator),
                    torch.rand(int(n), int(n), 5, generator=generator),
                )
                for n in chunk
            ]
        )
        for chunk in sizes.chunk(groups)
    ]


def run(
    batch: int = 120,
    groups: int = 4,
    rounds: int = 12,
    warmup: int = 2,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Time all forms in turns and measure their memory.

    Args:
        batch: Molecules.
        groups: Groups of similar size that the padded form gets them in.
        rounds: Measurements of each form.
        warmup: Unmeasured calls of each.
        device: Where to run.
        threads: Threads of torch; None leaves them as they are.
        seed: Seed of molecules and weights.

    Returns:
        ``pyg_over_factorised`` and ``bfloat16_over_factorised``: [median, low, high] of the ratio
        of times; ``seconds``: medians; ``peak_bytes``; ``difference`` and ``rounding``: largest of
        the features of these two; ``settings``.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    molecules = [group.to(device) for group in random_groups(batch, groups, seed)]
    converted = to_geometric(molecules)
    torch.manual_seed(seed)
    factorised = MessagePassing().to(device)
    reference = MessagePassingPyG().to(device)
    rounded = MessagePassing(messages=torch.bfloat16).to(device)
    for other in (reference, rounded):
        other.load_state_dict(factorised.state_dict())
    direction = torch.randn(batch, factorised.out_features, device=device)

    def step(network: nn.Module, graphs: Any) -> Callable[[], None]:
        def call() -> None:
            network.zero_grad(set_to_none=True)
            network(graphs).backward(direction)

        return call

    calls = {
        "factorised": step(factorised, molecules),
        "bfloat16": step(rounded, molecules),
        "pyg": step(reference, converted),
    }
    with torch.no_grad():
        features: Tensor = factorised(molecules)
        difference = float((features - reference(converted)).abs().max())
        rounding = float((features - rounded(molecules)).abs().max())
    timings = interleave(calls, rounds=rounds, warmup=warmup)
    return {
        "pyg_over_factorised": list(timings.ratio("pyg", "factorised")),
        "bfloat16_over_factorised": list(timings.ratio("bfloat16", "factorised")),
        "seconds": {name: timings.median(name) for name in calls},
        "peak_bytes": {name: peak_memory(call, device) for name, call in calls.items()},
        "difference": difference,
        "rounding": rounding,
        "settings": {
            "batch": batch,
            "groups": groups,
            "rounds": rounds,
            "device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "seed": seed,
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--batch", type=int, default=120, help="molecules (120)")
    parser.add_argument("--groups", type=int, default=4, help="groups of similar size (4)")
    parser.add_argument("--rounds", type=int, default=12, help="measurements of each form (12)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    parser.add_argument("--threads", type=int, help="threads of torch; default: as it comes")
    parser.add_argument("--seed", type=int, default=0, help="seed of molecules and weights (0)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args(arguments)
    result = run(
        batch=options.batch,
        groups=options.groups,
        rounds=options.rounds,
        device=options.device,
        threads=options.threads,
        seed=options.seed,
    )
    print(f"forward + backward, {options.batch} molecules, {result['settings']}")
    for name, seconds in result["seconds"].items():
        print(
            f"  {name:<11} {1e3 * seconds:9.1f} ms   {result['peak_bytes'][name] / 2**20:8.1f} MiB"
        )
    for name, apart in (("pyg", "difference"), ("bfloat16", "rounding")):
        median, low, high = result[f"{name}_over_factorised"]
        print(
            f"  {name} / factorised = {median:.2f} [{low:.2f}, {high:.2f}] (95 % over rounds), "
            f"features at most {result[apart]:.1e} apart"
        )
    if options.json is not None:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
