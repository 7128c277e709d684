"""``python -m experiments figures``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.launch import friendly

Record = Mapping[str, Any]


def figures(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of finished runs.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the figures; made if missing.")
    ] = Path("results/figures"),
    debug: Annotated[bool, typer.Option(help="Show the full traceback of an error.")] = False,
) -> None:
    """Compare finished runs of one benchmark: a table, and figures with a curve for each run."""
    from experiments.errors import DataError
    from experiments.files import prepare_folder
    from experiments.report import curves as drawing
    from experiments.report.render import terminal
    from experiments.report.runs import comparison
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
