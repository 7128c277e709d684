"""All timings, as ratios from interleaved runs: ``make bench`` or ``python -m benchmarks``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import costs, head_stage, network, step
from experiments.files import prepare_folder, write_json


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks.json"))
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a figure")
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)  # before minutes of work, not after
    console = Console()
    rounds = 4 if options.quick else 20
    results: dict[str, Any] = {}
    for case in head_stage.SIZES:
        with console.status(f"head stage, {case} sizes"):
            results[f"head stage, {case}"] = head_stage.run(case, rounds=2 * rounds)
        console.print(_head_table(results[f"head stage, {case}"]))
    for case in ("qm9", "cifar"):
        with console.status(f"whole step, {case}"):
            results[f"step, {case}"] = step.run(case, rounds=rounds)
        console.print(_step_line(results[f"step, {case}"]))
    with console.status("heads of all sizes"):
        results["costs"] = costs.run(rounds=max(4, rounds // 2))
    for made in (costs.table, costs.growth_table, costs.limits_table):
        console.print(made(results["costs"]), soft_wrap=True, markup=False)
    with console.status("network with and without edge matrices"):
        results["network"] = network.run(rounds=max(4, rounds // 3))
    median, low, high = results["network"]["pyg_over_factorised"]
    console.print(
        f"QM9 network, forward + backward: PyG / factorised {median:.1f} [{low:.1f}, {high:.1f}]"
    )
    results["torch"] = torch.__version__
    write_json(options.out, results)
    console.print(f"written to {options.out}")


def _head_table(result: dict[str, Any]) -> Table:
    batch, tasks, size = head_stage.SIZES[result["case"]]
    table = Table(
        title=f"Head stage at {result['case']} sizes: batch {batch}, {tasks} tasks, "
        f"{size} features, {result['threads']} threads"
    )
    for column in ("", "ms", "over plain losses [95 %]", "peak MiB"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seconds in result["seconds"].items():
        median, low, high = result["over_plain"][name]
        table.add_row(
            name,
            f"{1e3 * seconds:.2f}",
            f"{median:.1f} [{low:.1f}, {high:.1f}]",
            f"{result['peak_bytes'][name] / 2**20:.1f}",
        )
    if result["floor"] is not None:
        parts = ", ".join(f"{1e3 * s:.2f} {n}" for n, s in result["floor"].items() if n != "sum")
        table.add_row(f"floor: {parts}", f"{1e3 * result['floor']['sum']:.2f}", "", "")
    return table


def _step_line(result: dict[str, Any]) -> str:
    median, low, high = result["bayesagg_over_ls"]
    ls, ours = (1e3 * result["seconds"][name] for name in ("ls", "bayesagg"))
    return (
        f"Whole step, {result['case']}: Bayesian {ours:.1f} ms, LS {ls:.1f} ms, "
        f"ratio {median:.3f} [{low:.3f}, {high:.3f}]"
    )


if __name__ == "__main__":
    main()
