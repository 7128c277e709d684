"""All timings, as ratios from interleaved runs: ``make bench`` or ``python -m benchmarks``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks import costs, head_stage, network, step
from experiments.files import prepare_folder, write_json
from experiments.tables.escaping import PlainConsole
from experiments.tables.render import terminal
from experiments.tables.table import Cell, Column, Row, Table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks.json"))
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a figure")
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)  # before minutes of work, not after
    console = PlainConsole()
    rounds = 4 if options.quick else 20
    results: dict[str, Any] = {}
    for case in head_stage.SIZES:
        with console.status(f"head stage, {case} sizes"):
            results[f"head stage, {case}"] = head_stage.run(case, rounds=2 * rounds)
        console.print(terminal(_head_table(results[f"head stage, {case}"])))
    for case in ("qm9", "cifar"):
        with console.status(f"whole step, {case}"):
            results[f"step, {case}"] = step.run(case, rounds=rounds)
        console.print(_step_line(results[f"step, {case}"]))
    with console.status("heads of all sizes"):
        results["costs"] = costs.run(rounds=max(4, rounds // 2))
    for made in (costs.table, costs.growth_table, costs.limits_table):
        console.say(made(results["costs"]))
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
    rows = []
    for name, seconds in result["seconds"].items():
        median, low, high = result["over_plain"][name]
        ratio, peak = f"{median:.1f} [{low:.1f}, {high:.1f}]", result["peak_bytes"][name] / 2**20
        cells = Cell(1e3 * seconds), Cell(text=ratio), Cell(peak, decimals=1)
        rows.append(Row(name, cells))
    if result["floor"] is not None:
        parts = ", ".join(f"{1e3 * s:.2f} {n}" for n, s in result["floor"].items() if n != "sum")
        rows.append(Row(f"floor: {parts}", (Cell(1e3 * result["floor"]["sum"]), Cell(), Cell())))
    title = (
        f"Head stage at {result['case']} sizes: batch {batch}, {tasks} tasks, {size} features, "
        f"{result['threads']} threads"
    )
    columns = map(Column, ("ms", "over plain losses [95 %]", "peak MiB"))
    return Table("head-stage", title, tuple(columns), tuple(rows))


def _step_line(result: dict[str, Any]) -> str:
    median, low, high = result["bayesagg_over_ls"]
    ls, ours = (1e3 * result["seconds"][name] for name in ("ls", "bayesagg"))
    return (
        f"Whole step, {result['case']}: Bayesian {ours:.1f} ms, LS {ls:.1f} ms, "
        f"ratio {median:.3f} [{low:.3f}, {high:.3f}]"
    )


if __name__ == "__main__":
    main()
