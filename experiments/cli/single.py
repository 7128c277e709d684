"""One run, in this process and in a folder of its own: what a benchmark's own command does."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import typer

from experiments import presets, processes
from experiments.cli.launch import friendly
from experiments.errors import OutputError, SettingsError
from experiments.files import prepare_folder
from experiments.report.runs import single
from experiments.run import Run
from experiments.runner import Place, Request, choose
from experiments.runner.values import pairs
from experiments.settings import require
from experiments.tables.escaping import PlainConsole
from experiments.tables.render import terminal
from experiments.training import RECORD, RESULTS, Trainer
from experiments.training.terminal import reporter


def given_values(given: Mapping[str, Any], names: Collection[str]) -> dict[str, list[Any]]:
    """All values of every option that was given.

    Args:
        given: What a command was given.
        names: Of its options that are fields.

    Raises:
        SettingsError: An option is given twice, by its own flag and by ``--set``.
    """
    found = {}
    for name in ("level", *names):
        value = given.get(name)
        if value is not None and value != []:
            found[name] = value if isinstance(value, list) else [value]
    for name, values in pairs(given["changes"] or []).items():
        if name in found:
            raise SettingsError(f"{name} is given twice: leave one out")
        found[name] = values
    return found


def describe(benchmark: str, given: Mapping[str, Any], names: Collection[str]) -> Run:
    """The one run of what was given on the command line.

    Raises:
        SettingsError: Something does not fit, or there would be several.
    """
    changes = given_values(given, names)
    for name, values in changes.items():
        if len(values) > 1:
            raise SettingsError(
                f"{name} is given twice: leave one out, or give python -m experiments run "
                f"{benchmark} to train with each"
            )
    method = choose(given["method"] or "bayesagg")
    if len(method) > 1:
        raise SettingsError(
            f"method = {given['method']!r} names several: give one, or python -m experiments run "
            f"{benchmark} to train with each"
        )
    seed = 0 if given["seeds"] is None else int(given["seeds"])
    chosen = {name: values[0] for name, values in changes.items()}
    (run,) = Request(benchmark, method, (seed,), given["preset"] or presets.PAPER, chosen).runs()
    return run


def train(benchmark: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """Train, print the test errors, draw the figures; a run that never began leaves no folder."""
    with friendly(given["debug"]) as console:
        run = describe(benchmark, given, names)
        number = given["nproc"]
        require(number >= 1, "nproc", number, "give the number of processes, at least 1")
        if number > 1 and not processes.started():
            raise typer.Exit(processes.start(number))
        name = f"{run.benchmark.name}-{run.method}-seed{run.settings.seed}"
        with processes.joined(run.settings.device):
            _launch(run, given["out"] or Path("results") / name, given, console)


def _launch(run: Run, folder: Path, given: Mapping[str, Any], console: PlainConsole) -> None:
    first = processes.first()
    with _claimed(folder) if first else nullcontext():
        found = Trainer(
            run,
            folder,
            resume=given["resume"],
            overwrite=given["overwrite"],
            reporter=reporter(console) if first else None,
            record=given["record"],
            minutes=given["minutes"],
            log=(given["log"] or ()) if first else (),
        ).train()
    if not first:
        return
    console.print(terminal(single(found)))
    console.say(f"results: {folder / RESULTS}")
    if given["record"] is not None:
        console.say(f"record: {folder / RECORD}")
    if not given["no_figures"]:
        from experiments.report import curves as figures  # takes seconds to import

        for path in figures.draw([found], folder / "figures"):
            console.say(f"figure: {path}")


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; if an error leaves it empty, what is new goes again."""
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
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # something else has come
                for around in new[1:]:
                    around.rmdir()
        raise
