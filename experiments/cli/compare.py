"""``python -m experiments compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.launch import friendly
from experiments.compare import COMPARISONS, find, rows, table
from experiments.compare.figure import draw
from experiments.compare.table import markdown
from experiments.compare.work import STOPPED, Outcome, work
from experiments.files import prepare_folder
from experiments.settings import require, resolve_device

__all__ = ["EPILOG", "compare"]

EPILOG = """
Examples:

The small study on two cores, in pieces of half an hour; repeat it until all is done:
python -m experiments compare qm9-small --jobs 2 --minutes 30

The published protocol on a GPU, two runs side by side:
python -m experiments compare qm9-paper --jobs 2 --minutes 60 --data qm9.npz

Ten binary tasks of images, LS and BayesAgg with one thing changed at a time:
python -m experiments compare cifar-small --jobs 2 --data FOLDER

The table alone, of what is there:
python -m experiments compare qm9-small --table-only
"""


def compare(
    name: Annotated[str, typer.Argument(metavar="|".join(COMPARISONS), help="What to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for all runs.", show_default="results/NAME"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M", help="Stop after so many, at ends of epochs.", show_default="no limit"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs side by side.")] = 1,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="A seed to run; may be repeated.", show_default="all"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Label of an entry to run; may be repeated.", show_default="all"),
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = "auto",
    graph: Annotated[
        str, typer.Option(metavar="auto|on|off|twin|compile", help="Capture steps in CUDA graphs.")
    ] = "auto",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Of QM9 the built file; of CIFAR-10 a folder, as for cifar-mtl.",
            show_default="built or downloaded once",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Other than planned, for all entries.", show_default="as planned"),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--lr", help="Other than planned, for all entries.", show_default="as planned"
        ),
    ] = None,
    record: Annotated[
        int | None,
        typer.Option(
            metavar="EVERY", help="Diagnostics of one step in so many.", show_default="none"
        ),
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing; show what is there.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Draw PATH.png and PATH.pdf, and PATH-record of what was recorded.",
            show_default="none",
        ),
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show full tracebacks.")] = False,
) -> None:
    """Run a named comparison and print one table.

    What is finished is not run again, and what was stopped goes on where it stopped, so the same
    command may be given again and again until all is done. The exit status is 0 when it is, 1
    when a run failed, 3 when runs are left.
    """
    with friendly(debug) as console:
        comparison = find(name)
        if data is not None:
            require(data.exists(), "data", str(data), "there is no such file or folder")
            comparison = comparison.at(str(data))
        require(record is None or record >= 1, "record", record, "give 1 or more steps")
        resolve_device(device)
        folder = out or Path("results") / name
        if figure is not None:
            prepare_folder(figure.parent)
        everywhere = {"device": device, "graph": graph, "epochs": epochs}
        chosen = comparison.jobs(only or (), seeds or (), learning_rate=learning_rate, **everywhere)
        given = {"data": data, "record": record, "lr": learning_rate, **everywhere}
        options = [
            word
            for option, value in given.items()
            if value is not None
            for word in (f"--{option}", str(value))
        ]
        outcome = Outcome(0, 0)
        if not table_only:
            outcome = work(
                name,
                chosen,
                folder,
                at_once=jobs,
                minutes=minutes,
                options=options,
                say=lambda text: console.print(text, highlight=False, soft_wrap=True),
            )
        found = rows(comparison, chosen, folder)
        if as_markdown:
            print(markdown(comparison, found))
        else:
            console.print(table(comparison, found))
        if figure is not None:
            for path in draw(comparison, chosen, folder, figure):
                console.print(f"figure: {path}", soft_wrap=True, highlight=False)
        if outcome.failed:
            raise typer.Exit(1)
        if outcome.left:
            console.print(f"{outcome.left} runs are left: give the same command again")
            raise typer.Exit(STOPPED)
