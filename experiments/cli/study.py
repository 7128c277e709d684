"""``python -m experiments study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.launch import Debug, friendly
from experiments.studies import QUESTIONS, question

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for results.json, tables.md and figures.",
        show_default="results/study-NAME",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="The others follow it.")]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="The smallest setting: shows that it works, not what comes out."),
]


def study(
    name: Annotated[str, typer.Argument(metavar="|".join(QUESTIONS), help="Which question.")],
    out: Out = None,
    first_seed: Seed = 0,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Answer one question about the method by a few small runs, in minutes.

    approximations: how far are inference schemes apart, and does it change the update? priors:
    which prior keeps up with moving features? missing: what happens when labels are missing? heads:
    what do heads that are not linear bring? calibration: does each scheme put true weights where
    its posterior says?
    """
    with friendly(debug) as console:
        console.print(question(name), style="bold")
        from experiments.settings import require_seed
        from experiments.studies.study import RESULTS, Context, conduct
        from experiments.tables.render import terminal

        require_seed("first_seed", first_seed)
        folder = out or Path("results") / f"study-{name}"
        found = conduct(name, Context(folder, first_seed, quick, console.say))
        for table in found.tables.values():
            console.print(terminal(table.shown()))
        for note in found.notes:
            console.say(note)
        console.say(f"results: {folder / RESULTS}")
        for figure in found.figures:
            console.say(f"figure: {folder / figure}.png")
