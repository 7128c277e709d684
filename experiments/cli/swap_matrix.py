"""``python -m experiments swap-matrix``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from experiments.cli import options as o
from experiments.cli.launch import friendly
from experiments.files import prepare_folder, write_text
from experiments.settings import require

__all__ = ["EPILOG", "swap_matrix"]

EPILOG = """
Example:

python -m experiments swap-matrix --out docs/swap_matrix.md
"""


def swap_matrix(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path(
        "docs/swap_matrix.md"
    ),
    debug: o.Debug = False,
) -> None:
    """Run every head with every scheme, prior, estimator and aggregation; write what goes.

    About two minutes on one core. Ends with status 1 where a result is wrong.
    """
    with friendly(debug) as console:
        require(not out.is_dir(), "out", str(out), "it is a folder: give the name of a file")
        prepare_folder(out.parent)  # before two minutes of work, not after
        from experiments.swap.axes import HEADS
        from experiments.swap.page import Matrix, render, run

        found = Matrix()
        for head in track(HEADS, description="heads", console=console, transient=True):
            part = run([head])
            found.inference |= part.inference
            found.moments |= part.moments
            found.directions |= part.directions
        write_text(out, render(found))
        for cell in found.faults():
            console.print(f"{' × '.join(cell.names)}: {cell.fault}", style="red")
        ran = sum(c.why is None for c in [*found.inference.values(), *found.directions.values()])
        total = len(found.inference) + len(found.directions)
        console.print(f"{ran} of {total} combinations run; written to {out}")
        if found.faults():
            raise typer.Exit(1)
