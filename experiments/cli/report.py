"""``python -m experiments report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.launch import friendly


def report(
    store: Annotated[
        Path, typer.Argument(metavar="DIR", help="A results store: the --out of run or sweep.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Which table of the paper, a benchmark in the store, or calibration: coverage of "
            "intervals and errors of probabilities on the test rows, from checkpoints; may be "
            "repeated.",
            show_default="all but calibration that have something to show",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="terminal|md|latex", help="How it is written.")
    ] = "terminal",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder for the tables and for the figures, as PNG and PDF; or a file for the "
            "tables, .md or .tex, with the figures beside it.",
            show_default="print the tables, draw no figures",
        ),
    ] = None,
    single_task: Annotated[
        str,
        typer.Option(
            metavar="published|runs",
            help="Single-task row that Δm is taken against: the published one, or that of the STL "
            "runs in the store.",
        ),
    ] = "published",
    everything: Annotated[
        bool,
        typer.Option("--all-rows", help="Also what stands in the paper's tables and was not run."),
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the full traceback of an error.")] = False,
) -> None:
    """The paper's tables and figures from finished runs, ours beside the paper's.

    Of several configurations of a method the one that is best on validation is shown; numbers are
    those of the test split.
    """
    from experiments.errors import SettingsError
    from experiments.report.escaping import PlainConsole, visible
    from experiments.report.figures import draw
    from experiments.report.render import latex, markdown, terminal
    from experiments.report.write import FORMATS, tables, write
    from experiments.runner import records

    with friendly(debug) as console:
        for name, value, known in (
            ("format", form, FORMATS),
            ("single-task", single_task, ("published", "runs")),
        ):
            if value not in known:
                others = ", ".join(known[:-1])
                raise SettingsError(f"{name} = {value!r} is unknown: give {others} or {known[-1]}")
        unreadable: list[str] = []
        made = tables(
            store,
            table,
            single_task,  # type: ignore[arg-type]
            unreadable.append,
            everything=everything,
        )
        for line in unreadable:
            PlainConsole(stderr=True).say(visible(f"warning: {line}"), "yellow")
        if form == "terminal":
            for one in made:
                console.print(terminal(one))
        elif out is None:
            for one in made:
                text = latex(one) if form == "latex" else markdown(one)
                console.say(text)
        else:
            path = write(made, form, out)  # type: ignore[arg-type]
            out = path.parent
            console.say(f"tables: {path}")
        if not made:
            console.print("no finished runs, no tables; see --table for those of the paper")
        if out is not None:
            for path in draw(records(store, unreadable.append), out / "figures"):
                console.say(f"figure: {path}")
