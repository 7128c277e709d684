"""``python -m experiments study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import image_options as i
from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.settings import require
from experiments.studies import STUDIES, Context, conduct
from experiments.studies.study import RESULTS

__all__ = ["EPILOG", "study"]

EPILOG = """
Examples:

python -m experiments study approximations

python -m experiments study missing --out results/study-missing
"""


def study(
    name: Annotated[str, typer.Argument(metavar="|".join(STUDIES), help="Which question.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for results.json and figures.",
            show_default="results/study-NAME",
        ),
    ] = None,
    seed: i.Seed = 0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="The smallest setting: shows that it works, not what comes out."
        ),
    ] = False,
    debug: o.Debug = False,
) -> None:
    """Answer one question about the method by a few small runs, in minutes.

    approximations: how far are inference schemes apart, and does it change the update? priors:
    which prior keeps up with moving features? missing: what happens when labels are missing? heads:
    what do heads that are not linear bring?
    """
    with friendly(debug) as console:
        require(name in STUDIES, "study", name, f"give one of {', '.join(STUDIES)}")
        folder = out or Path("results") / f"study-{name}"
        chosen = STUDIES[name]
        console.print(chosen.question, style="bold")

        def told(line: str) -> None:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

        outcome = conduct(chosen, Context(folder, seed, quick, told))
        for table in outcome.tables.values():
            console.print(table.grid())
        for note in outcome.notes:
            told(note)
        told(f"results: {folder / RESULTS}")
        for figure in outcome.figures:
            told(f"figure: {folder / figure}.png")
