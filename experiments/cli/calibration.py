"""``python -m experiments calibration``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments import scheme_calibration as study
from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.settings import require

__all__ = ["EPILOG", "calibration"]

EPILOG = """
Example:

python -m experiments calibration --out results/calibration
"""

_NAMES = tuple(case.name for case in study.CASES)


def calibration(
    replications: Annotated[int, typer.Option(help="Truths that are drawn from the prior.")] = 200,
    examples: Annotated[int, typer.Option(help="Examples of each replication.")] = 20,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(_NAMES), help="These cases alone.", show_default="all"),
    ] = None,
    seed: o.Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results and figures.")] = (
        Path("results/calibration")
    ),
    debug: o.Debug = False,
) -> None:
    """Ask whether each inference scheme puts true weights where its posterior says.

    Simulation-based calibration: weights are drawn from the prior and targets from them. Exact
    schemes must pass. Schemes that approximate may fail, and the figures show how.
    """
    with friendly(debug) as console:
        unknown = [name for name in only or () if name not in _NAMES]
        require(not unknown, "only", unknown, f"give some of {', '.join(_NAMES)}")
        study.run(
            out,
            replications=replications,
            examples=examples,
            seed=seed,
            cases=tuple(case for case in study.CASES if not only or case.name in only),
            told=lambda line: console.print(line, soft_wrap=True, highlight=False),
        )
        console.print(f"results: {out / 'calibration.json'}", soft_wrap=True, highlight=False)
