"""``python -m experiments demo``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from experiments import figures, tables
from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.demo import EPOCHS, MOLECULES, TEST, VALIDATION, jobs, runs
from experiments.demo import demo as run_demo
from experiments.report import tables as report_tables
from experiments.report import terminal, write
from experiments.report.figures import draw
from experiments.runner import Watcher, records
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
    parallel: Annotated[
        int, typer.Option("--jobs", help="Runs side by side, a core for each.")
    ] = min(2, os.cpu_count() or 1),
    debug: o.Debug = False,
) -> None:
    """Train five methods on real molecules: some ten minutes on two cores.

    The usual baseline (LS), two that weigh losses or gradients (UW, IMTL-G), one that aligns
    gradients (Aligned-MTL-UB) and the paper's learn eleven properties of 3,000 molecules with a
    small network, from the same initial weights. It ends with a table of test errors, figures, and
    the report: the paper's table of QM9 with these five beside it.
    """
    with friendly(debug) as console:
        path = None if data is None else str(data)
        todo = jobs(runs(molecules, epochs, seed, validation=validation, test=test, data=path), out)
        try:
            with Watcher(todo, console) as watcher:
                found = run_demo(todo, out, parallel, watcher)
        except KeyboardInterrupt:
            console.print("interrupted; the next demonstration starts from the beginning")
            raise typer.Exit(130) from None
        console.print(tables.comparison(found))
        made = report_tables(out, ["qm9", "qm9-full"])
        console.print(terminal(made[0]))
        console.print(f"results: {out / RESULTS}", soft_wrap=True, highlight=False)
        report = write(made, "md", out / "report")
        console.print(f"report: {report}", soft_wrap=True, highlight=False)
        drawn = figures.draw(found, out / "figures")
        for figure in [*drawn, *draw(records(out), out / "report" / "figures")]:
            console.print(f"figure: {figure}", soft_wrap=True, highlight=False)
