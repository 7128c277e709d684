"""What a step costs, by the size of the head: ``python -m benchmarks.costs``.

Steps of LS, of the default rule, and of a rule that reads every posterior, in turns; of the
published algorithm too, for binary tasks and classes. Where one size grows, the exponent of the
growth is fitted to the last three sizes. ``--limits`` and ``--only NAME`` pick cases
(`benchmarks.cases`); ``--page FILE`` writes the tables as a page.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.cases import CASES, Limits, selected
from benchmarks.measure import RULES, measure
from experiments.files import prepare_folder, write_json, write_text
from experiments.files.reading import json_file

#: What follows the number that grows in the names of a family, and the term that grows so.
_FAMILIES = {
    "binary": "tasks: quadrature and (d + 1)³ algebra for each, exponent 1",
    "binary, diagonal": "tasks: products with B × d, exponent 1",
    "classes": "classes C: a dense posterior takes (C·d)³ up to 768 weights; then Kronecker, C × "
    "points for each example and the C³ of one factor",
    "rows, 1 × regression": "rows: their products, exponent 1",
    "rows, 1 × binary": "rows: quadrature for each, exponent 1",
}
_PAGE = """# Costs, measured

Steps with every kind of head next to linear scalarisation (LS), by one command:

```bash
OMP_NUM_THREADS={threads} python -m benchmarks.costs {arguments}
```

{processor}, {threads} thread{plural}, torch {torch}. Times of the processor, which other work on
the machine does not add to; medians of interleaved rounds, with 95 % intervals of ratios. The
backbone is one linear layer unless it is named, so nearly all of the time is that of heads.
"Default" is `BayesAgg(heads)`; "all" is a rule that reads every posterior, `PrecisionWeighted()`.

<!-- written by that command -->
## What is promised

{limits}

## By head

"Published" is the paper's algorithm for classification: one posterior over the weights of all
outputs, and 1,024 draws.

{table}

## Growth

The exponent of a step's time in the number that grows, fitted to the last three sizes, where every
posterior is read.

{growth}
<!-- end -->

Next: [how to read this](costs.md), and what costs less.
"""


def run(
    rounds: int = 10,
    seed: int = 0,
    *,
    only: list[str] | None = None,
    limits: bool = False,
    slow: bool = False,
    known: Sequence[dict[str, Any]] = (),
    note: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Time cases.

    Args:
        rounds: Measurements of each step; a third of them for slow cases.
        seed: Of weights and data.
        only: Parts of the names of those that are wanted; all else.
        limits: Whether those alone of which something is promised.
        slow: Whether those as well of which a step takes seconds.
        known: Rows of earlier, which are not measured again.
        note: Told of what there is after each case.

    Returns:
        ``rows`` of `measure`, and ``growth``.
    """
    console = Console(stderr=True)
    before = {row["case"]: row for row in known}
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for case in selected(only or [], limits=limits, slow=slow):
        with console.status(case.name):
            some = max(2, rounds // 3) if case.slow else rounds
            rows.append(before.get(case.name) or measure(case, some, seed))
        growth = {family: _exponent(rows, family) for family in _FAMILIES}
        found = {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "processor": _processor(),
            "rows": rows,
            "growth": {family: value for family, value in growth.items() if value is not None},
        }
        note(found)
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "A CPU"


def _exponent(rows: list[dict[str, Any]], family: str) -> float | None:
    """Of the time with all posteriors in the number that names begin with, last three sizes."""
    sizes = [
        (int(first), row["seconds"]["all"])
        for row in rows
        for first, rest in [row["case"].split(" ", 1)]
        if rest == family
    ]
    if len(sizes) < 3:
        return None
    number, seconds = np.log(np.array(sorted(sizes)[-3:])).T
    return float(np.polyfit(number, seconds, 1)[0])


def table(result: dict[str, Any]) -> str:
    """All cases, as Markdown."""
    lines = [
        "| head | scheme | LS, ms | default / LS | all, ms | all / LS | MiB | published / LS |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        ls, every = (1e3 * row["seconds"][name] for name in ("ls", "all"))
        default, all_read = (_ratio(row["over_ls"][rule]) for rule in RULES)
        published = row["over_ls"].get("published")
        cells = (
            row["case"],
            f"`{row['schemes']}`",
            f"{ls:.1f}",
            default,
            f"{every:.1f}",
            all_read,
            f"{row['peak_bytes']['all'] / 2**20:.1f}",
            "" if published is None else f"{published[0]:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(found: list[float]) -> str:
    median, low, high = (f"{number:.2g}" if number < 100 else f"{number:.0f}" for number in found)
    return f"{median} [{low}, {high}]"


def limits_table(result: dict[str, Any]) -> str:
    """What is promised of these cases beside what was reached, as Markdown."""
    lines = ["| case | what | limit | default | all |", "| --- | --- | ---: | ---: | ---: |"]
    promised = {case.name: case.limits for case in CASES}
    for row in result["rows"]:
        for what, limit, reached in _against(row, promised[row["case"]]):
            cells = [
                f"{number:.3g}" if number <= limit else f"{number:.3g}, **missed**"
                for number in reached
            ]
            lines.append(f"| {row['case']} | {what} | {limit:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _against(row: dict[str, Any], limits: Limits) -> Iterator[tuple[str, float, list[float]]]:
    """What is limited, by how much, and what each rule reached."""
    time, over, bytes_ = row["seconds"], row["over_ls"], row["peak_bytes"]
    for what, limit, reached in (
        ("time over LS", limits.time, [over[rule][0] for rule in RULES]),
        ("memory over LS", limits.memory, [bytes_[rule] / bytes_["ls"] for rule in RULES]),
        ("seconds of processor", limits.seconds, [time[rule] for rule in RULES]),
        ("MiB", limits.mebibytes, [bytes_[rule] / 2**20 for rule in RULES]),
    ):
        if limit is not None:
            yield what, limit, reached


def growth_table(result: dict[str, Any]) -> str:
    """Exponents and the terms that explain them, as Markdown."""
    lines = ["| family | exponent | what grows |", "| --- | ---: | --- |"]
    for family, found in result["growth"].items():
        lines.append(f"| {family} | {found:.2f} | {_FAMILIES[family]} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/costs.json"))
    parser.add_argument("--page", type=Path, help="Markdown of all tables")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names")
    parser.add_argument("--limits", action="store_true", help="only what something is promised of")
    parser.add_argument("--slow", action="store_true", help="steps that take seconds as well")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    options = parser.parse_args(arguments)
    for file in (options.out, options.page):
        if file is not None:
            prepare_folder(file.parent)
    known = json_file(options.out, "leave --resume away")["rows"] if options.resume else ()
    chosen = {name: getattr(options, name) for name in ("only", "limits", "slow")}
    try:
        result = run(options.rounds, **chosen, known=known, note=partial(write_json, options.out))
    except ValueError as error:
        parser.error(str(error))
    tables = {
        "limits": limits_table(result),
        "table": table(result),
        "growth": growth_table(result),
    }
    print(tables["limits"] if options.limits else "\n\n".join(tables.values()))
    if options.page is not None:
        words = f"--page {options.page} --rounds {options.rounds}"
        words += " --slow" * options.slow + " --limits" * options.limits
        words += " --only " + " ".join(map(repr, options.only)) if options.only else ""
        about = {name: result[name] for name in ("threads", "torch", "processor")}
        plural = "s" * (result["threads"] > 1)
        write_text(options.page, _PAGE.format(arguments=words, plural=plural, **about, **tables))


if __name__ == "__main__":
    main()
