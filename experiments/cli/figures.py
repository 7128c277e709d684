"""``python -m experiments figures``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments import figures as drawing
from experiments import results, tables
from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.errors import DataError
from experiments.training import RESULTS

__all__ = ["EPILOG", "figures"]

EPILOG = """
Example:

python -m experiments figures results/qm9-ls-seed0 results/qm9-bayesagg-seed0 --out results/both
"""


def figures(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of finished runs.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the figures; made if missing.")
    ] = Path("results/figures"),
    debug: o.Debug = False,
) -> None:
    """Compare finished runs of one benchmark: a table, and figures with a curve for each run."""
    with friendly(debug) as console:
        records = [results.load(folder / RESULTS) for folder in runs]
        names = sorted({record["benchmark"]["name"] for record in records})
        if len(names) > 1:
            raise DataError(f"these runs belong to {', '.join(names)}: give runs of one benchmark")
        console.print(tables.comparison(records))
        for path in drawing.draw(records, out):
            console.print(f"figure: {path}", soft_wrap=True, highlight=False)
