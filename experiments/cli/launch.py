"""From options to a finished run, with errors as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from bayesagg_pyro.errors import BayesAggError
from experiments import figures, tables
from experiments.errors import (
    ExperimentError,
    OutOfTime,
    OutputError,
    RunInterrupted,
    SettingsError,
)
from experiments.escaping import PlainConsole, visible
from experiments.files import prepare_folder, remove_if_empty
from experiments.run import Run
from experiments.runner.store import Place
from experiments.terminal import reporter
from experiments.training import RECORD, RESULTS, Trainer

__all__ = ["Command", "friendly", "launch"]


class Command(TyperCommand):
    """Refuses empty arguments: an empty path would mean the folder that one is in."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command does."""
        for before, word in zip(["", *args], args, strict=False):
            name, sign, value = word.partition("=")
            if not word.strip() or (sign and name.startswith("--") and not value.strip()):
                told = name if sign else before if before.startswith("-") else "an argument"
                with friendly(debug=False):
                    raise SettingsError(f"{told} = {value!r} cannot work: give it a value")
        return super().parse_args(ctx, args)


@contextmanager
def friendly(debug: bool) -> Iterator[Console]:
    """Print what goes wrong as one line and exit with status 2.

    It is 130 after Ctrl-C, and 3 when the given minutes are over.

    Args:
        debug: Let the exception through, with its traceback.
    """
    console = PlainConsole()
    errors = PlainConsole(stderr=True)
    try:
        yield console
    except RunInterrupted as error:
        errors.print(visible(error), style="yellow", soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None
    except OutOfTime as stopped:
        console.print(visible(stopped), soft_wrap=True, highlight=False)
        raise typer.Exit(3) from None
    except (ExperimentError, BayesAggError, OSError) as error:  # the last of a file or a folder
        if debug:
            raise
        errors.print(visible(f"error: {error}"), style="red", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None


def launch(
    run: Run,
    out: Path | None,
    *,
    resume: bool,
    overwrite: bool,
    draw: bool,
    console: Console,
    record: int | None = None,
    minutes: float | None = None,
) -> Mapping[str, Any]:
    """Train, print the test errors, draw the figures; a run that never began leaves no folder.

    Returns:
        The results.

    Raises:
        OutputError: Another process is at work in the folder.
        ExperimentError: Anything that cannot work; see :class:`experiments.training.Trainer`.
    """
    folder = out or Path("results") / (f"{run.benchmark.name}-{run.method}-seed{run.settings.seed}")
    with _claimed(folder):
        found = Trainer(
            run,
            folder,
            resume=resume,
            overwrite=overwrite,
            reporter=reporter(console),
            record=record,
            minutes=minutes,
        ).train()
    console.print(tables.single(found))
    console.print(f"results: {folder / RESULTS}", soft_wrap=True, highlight=False)
    if record is not None:
        console.print(f"record: {folder / RECORD}", soft_wrap=True, highlight=False)
    if draw:
        for path in figures.draw([found], folder / "figures"):
            console.print(f"figure: {path}", soft_wrap=True, highlight=False)
    return found


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is removed again if an error leaves it empty."""
    new = prepare_folder(folder)
    try:
        with Place(folder).locked() as mine:
            if not mine:
                raise OutputError(
                    f"another process is at work in {folder}: wait until it has finished, or "
                    "choose another --out"
                )
            yield
    except BaseException:
        if new and all(file.suffix == ".lock" for file in folder.iterdir()):
            for file in folder.iterdir():
                file.unlink()
            remove_if_empty(folder)
        raise
