"""A Bayesian step over a warm-up step, by the size of the head: ``python -m benchmarks.costs``.

``--limits`` measures what is promised and prints it beside what was reached; ``--only NAME`` picks
cases (`benchmarks.cases`). Where one size grows, the exponent of the growth is fitted to the last
three sizes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.cases import CASES, Limits, measure, selected
from experiments.files import prepare_folder, write_json

__all__ = ["limits_table", "run", "table"]

#: Sizes that grow under one scheme, and the term that the growth should be that of.
_FAMILIES = {
    "binary": ("full", "tasks: quadrature and P^3 algebra for each, exponent 1"),
    "binary, diagonal": ("diag", "tasks: quadrature and products with B x d, exponent 1"),
    "classes": ("kron", "classes: C x points for each example, C^2 turns of them, exponent 1 to 2"),
}


def run(
    rounds: int = 10,
    seed: int = 0,
    *,
    only: list[str] | None = None,
    limits: bool = False,
    slow: bool = False,
    defaults: bool = False,
) -> dict[str, Any]:
    """Time cases.

    Args:
        rounds: Measurements of each step; a third of them for slow cases.
        seed: Of weights and data.
        only: Parts of the names of those that are wanted; all else.
        limits: Whether those alone of which something is promised.
        slow: Whether those as well of which a step takes seconds.
        defaults: Whether steps are those of the default rule; else they read every posterior.

    Returns:
        ``rows`` of `measure`, and ``growth``.
    """
    console = Console(stderr=True)
    rows = []
    for case in selected(only or [], limits=limits, slow=slow):
        with console.status(case.name):
            some = max(2, rounds // 3) if case.slow else rounds
            rows.append(measure(case, some, seed, defaults=defaults))
    growth = {
        term: _exponent([row for row in rows if scheme in row["schemes"]], family)
        for family, (scheme, term) in _FAMILIES.items()
    }
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
        "growth": {term: value for term, value in growth.items() if value is not None},
    }


def _exponent(rows: list[dict[str, Any]], family: str) -> float | None:
    """Of the Bayesian step's time in the number that its name begins with, last three sizes."""
    sizes = [
        (int(first), row["seconds"]["bayesagg"])
        for row in rows
        for first, rest in [row["case"].split(" ", 1)]
        if rest == family
    ]
    if len(sizes) < 3:
        return None
    number, seconds = np.log(np.array(sorted(sizes)[-3:])).T
    return float(np.polyfit(number, seconds, 1)[0])


def table(result: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "| head | scheme | LS, ms | BayesAgg, ms | ratio | published |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        ls, ours = (1e3 * row["seconds"][n] for n in ("ls", "bayesagg"))
        ratio, low, high = row["over_ls"]
        shown = f"{ratio:.1f} [{low:.1f}, {high:.1f}]"
        known = row["published_over_ls"]
        cells = [row["case"], f"`{row['schemes']}`", f"{ls:.1f}", f"{ours:.1f}", shown]
        lines.append(f"| {' | '.join(cells)} | {'' if known is None else f'{known[0]:.0f}'} |")
    return "\n".join(lines)


def limits_table(result: dict[str, Any]) -> str:
    """What is promised of these cases beside what was reached, as Markdown."""
    promised = {case.name: case.limits for case in CASES}
    lines = ["| case | what | limit | reached | |", "| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        time, bytes_ = row["seconds"], row["peak_bytes"]
        limits: Limits = promised[row["case"]]
        for what, limit, reached in (
            ("time over LS", limits.time, row["over_ls"][0]),
            ("memory over LS", limits.memory, bytes_["bayesagg"] / bytes_["ls"]),
            ("seconds", limits.seconds, time["bayesagg"]),
            ("MiB", limits.mebibytes, bytes_["bayesagg"] / 2**20),
        ):
            if limit is not None:
                kept = "kept" if reached <= limit else "**missed**"
                lines.append(f"| {row['case']} | {what} | {limit:g} | {reached:.3g} | {kept} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/costs.json"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names")
    parser.add_argument("--limits", action="store_true", help="only what something is promised of")
    parser.add_argument("--slow", action="store_true", help="steps that take seconds as well")
    parser.add_argument("--defaults", action="store_true", help="steps of the default rule")
    options = parser.parse_args(arguments)
    prepare_folder(options.out.parent)
    try:
        chosen = {name: getattr(options, name) for name in ("only", "limits", "slow", "defaults")}
        result = run(options.rounds, **chosen)
    except ValueError as error:
        parser.error(str(error))
    write_json(options.out, result)
    print(limits_table(result) if options.limits else table(result))
    for term, value in result["growth"].items():
        print(f"growth with {term}: {value:.2f}")


if __name__ == "__main__":
    main()
