"""``python -m experiments demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments import figures, tables
from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.demo import EPOCHS, MOLECULES, TEST, VALIDATION, runs
from experiments.demo import demo as run_demo
from experiments.errors import RunInterrupted
from experiments.terminal import reporter
from experiments.training import RESULTS

__all__ = ["EPILOG", "demo"]

EPILOG = """
Example:

python -m experiments demo --out results/demo
"""


def demo(
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for results; what an earlier demo left in it is replaced."
        ),
    ] = Path("results/demo"),
    seed: Annotated[int, typer.Option(help="Decides molecules and initial weights.")] = 0,
    molecules: Annotated[int, typer.Option(help="Training molecules.")] = MOLECULES,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = EPOCHS,
    validation: Annotated[int, typer.Option(help="Validation molecules.")] = VALIDATION,
    test: Annotated[int, typer.Option(help="Test molecules.")] = TEST,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A QM9 data file built before.",
            show_default="the installed package; built once, then kept",
        ),
    ] = None,
    debug: o.Debug = False,
) -> None:
    """Train the baseline and the paper's method on real molecules: a few minutes on a CPU.

    Both learn eleven properties of 3,000 molecules with a small network, from the same initial
    weights. It ends with a table of test errors and with figures.
    """
    with friendly(debug) as console:
        path = None if data is None else str(data)
        try:
            records = run_demo(
                runs(molecules, epochs, seed, validation=validation, test=test, data=path),
                out,
                reporter(console),
            )
        except RunInterrupted:
            console.print("interrupted; the next demonstration starts from the beginning")
            raise typer.Exit(130) from None
        console.print(tables.comparison(records))
        console.print(f"results: {out / RESULTS}", soft_wrap=True, highlight=False)
        for figure in figures.draw(records, out / "figures"):
            console.print(f"figure: {figure}", soft_wrap=True, highlight=False)
