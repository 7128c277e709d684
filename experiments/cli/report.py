"""``python -m experiments report``, and ``figures`` of single runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.launch import Debug, friendly

Record = Mapping[str, Any]


def report(
    store: Annotated[
        Path, typer.Argument(metavar="DIR", help="A results store: the --out of run or sweep.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Which table of the paper, a benchmark in the store, calibration (coverage of "
            "intervals and errors of probabilities on the test rows, from checkpoints), or record "
            "(what the steps of runs with --record looked like); may be repeated.",
            show_default="all but the last two that have something to show",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="terminal|md|latex", help="How it is written.")
    ] = "terminal",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder for the tables, in the --format, and for the figures, as PNG and PDF; or "
            "a file for the tables, .md or .tex, with the figures beside it.",
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
    debug: Debug = False,
) -> None:
    """The paper's tables and figures from finished runs, ours beside the paper's.

    Of several configurations of a method the one that is best on validation is shown; numbers are
    those of the test split.
    """
    from experiments.errors import SettingsError
    from experiments.report import shares
    from experiments.report.figures import draw
    from experiments.report.write import FORMATS, SUFFIX, tables, write
    from experiments.runner import records
    from experiments.tables.escaping import PlainConsole, visible
    from experiments.tables.render import latex, markdown, terminal

    with friendly(debug) as console:
        for name, value, known in (
            ("format", form, FORMATS),
            ("single-task", single_task, ("published", "runs")),
        ):
            if value not in known:
                others = ", ".join(known[:-1])
                raise SettingsError(f"{name} = {value!r} is unknown: give {others} or {known[-1]}")
        named = next((f for f, suffix in SUFFIX.items() if out and out.suffix == suffix), form)
        if form not in ("terminal", named):
            raise SettingsError(f"format = {form!r} is not what {out} holds: give {named}")
        form = named
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
        made = [one for one in made if one.rows]
        if not made:
            console.print(
                "no tables: no finished runs, or for record none with --record; see --table for "
                "those of the paper"
            )
        elif form == "terminal":
            for one in made:
                console.print(terminal(one))
        elif out is None:
            for one in made:
                text = latex(one) if form == "latex" else markdown(one)
                console.say(text)
        else:
            path = write(made, form, out)  # type: ignore[arg-type]
            console.say(f"tables: {path}")
        if out is not None:
            place = (out.parent if out.suffix in SUFFIX.values() else out) / "figures"
            drawn = draw(records(store, unreadable.append, trials=False), place)
            if "record" in (table or ()):
                drawn += shares.draw(store, place, unreadable.append)
            for path in drawn:
                console.say(f"figure: {path}")


def figures(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of finished runs.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the figures; made if missing.")
    ] = Path("results/figures"),
    debug: Debug = False,
) -> None:
    """Compare finished runs of one benchmark: a table, and figures with a curve for each run."""
    from experiments.errors import DataError
    from experiments.files import prepare_folder
    from experiments.report import curves as drawing
    from experiments.report.runs import comparison
    from experiments.tables.render import terminal
    from experiments.training import results
    from experiments.training.checkpoints import RESULTS

    with friendly(debug) as console:
        folders = list(dict.fromkeys(runs))
        records = [results.load_whole(folder / RESULTS) for folder in folders]
        names = sorted({record["benchmark"]["name"] for record in records})
        if len(names) > 1:
            raise DataError(f"these runs belong to {', '.join(names)}: give runs of one benchmark")
        _require_same_tasks(folders, records)
        shown = _told_apart(folders, records)
        prepare_folder(out)
        console.print(terminal(comparison(shown)))
        for path in drawing.draw(shown, out):
            console.say(f"figure: {path}")


def _require_same_tasks(folders: Sequence[Path], records: Sequence[Record]) -> None:
    from experiments.errors import DataError
    from experiments.images.files import some

    first, *others = [{task["name"] for task in record["tasks"]} for record in records]
    for folder, names in zip(folders[1:], others, strict=True):
        if names != first:
            raise DataError(
                f"{folders[0]} and {folder} have different tasks (in one alone: "
                f"{some(sorted(names ^ first))}): give runs of the same tasks"
            )


def _told_apart(folders: Sequence[Path], records: Sequence[Record]) -> list[Record]:
    """With the folder in the title of runs that would have the same one."""
    count = Counter(record["title"] for record in records)
    repeated = [f for f, r in zip(folders, records, strict=True) if count[r["title"]] > 1]
    names = {folder: folder.resolve().name for folder in repeated}
    if len(set(names.values())) < len(names):
        names = {folder: str(folder) for folder in repeated}
    return [
        {**record, "title": f"{record['title']} ({names[folder]})"} if folder in names else record
        for folder, record in zip(folders, records, strict=True)
    ]
