"""``python -m experiments run`` and ``python -m experiments sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.cli import options as o
from experiments.cli.launch import Command, friendly
from experiments.errors import SettingsError
from experiments.files import prepare_folder
from experiments.runner import (
    BENCHMARKS,
    PRESETS,
    Ending,
    Engine,
    Job,
    Local,
    Request,
    Submitit,
    Watcher,
    choose,
    estimate,
    execute,
    grids,
    plan,
    plan_table,
    summary,
)
from experiments.runner.values import pairs

__all__ = ["RUN_EPILOG", "SWEEP_EPILOG", "SeveralValues", "run", "sweep"]

_WHERE = "Where to run"

RUN_EPILOG = """
Examples:

Every method on handwritten digits, in a few minutes:
python -m experiments run digits --methods all --jobs 2 --out results/all

Five methods on three thousand molecules, three seeds:
python -m experiments run qm9 --preset small --methods ls,rlw,uw,imtl-g,bayesagg --seeds 0 1 2
--jobs 2 --out results/small

What was interrupted, or killed, goes on with the same command.
"""

SWEEP_EPILOG = """
Example:

python -m experiments sweep cifar-mtl --methods bayesagg --seeds 0 --out results/sweep
"""


class SeveralValues(Command):
    """Lets ``--seeds 0 1 2`` stand for ``--seeds 0,1,2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the numbers after ``--seeds``."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if word == "--seeds":
                values = []
                while rest and rest[0].replace(",", "").isdigit():
                    values.append(rest.pop(0))
                joined.append(",".join(values))
        return super().parse_args(ctx, joined)


BenchmarkName = Annotated[str, typer.Argument(metavar="|".join(BENCHMARKS), show_default=False)]
Methods = Annotated[
    str,
    typer.Option(
        metavar="all|paper|ensembles|NAME,...",
        help="Methods: all of them, those of the paper's main tables, its ensembles, or by name; "
        "NAME@LEVEL for one that works at several levels (losses, parameters, "
        "representation).",
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        metavar="N...", help="A run for each; a seed decides the split as well, unless it is set."
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        metavar="|".join(["paper", *sorted({name for some in PRESETS.values() for name in some})]),
        help="Settings to start from: the paper's, or ones for a few minutes on a CPU "
        f"(small, for {', '.join(PRESETS)}).",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any option of the benchmark, setting of training, or METHOD.OPTION; may be repeated.",
        show_default=False,
    ),
]
Epochs = Annotated[
    int | None, typer.Option(help="Passes over the training examples.", show_default="the preset's")
]
Jobs = Annotated[int, typer.Option(help="Runs side by side.", rich_help_panel=_WHERE)]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads of each run.", show_default="cores / jobs", rich_help_panel=_WHERE
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="local|slurm|submitit-local",
        help="Processes on this machine, or jobs of a Slurm cluster through submitit "
        "(submitit-local: the same, tried on this machine).",
        rich_help_panel=_WHERE,
    ),
]
Minutes = Annotated[
    int, typer.Option(help="Time limit of a cluster's job.", rich_help_panel=_WHERE)
]
Gpus = Annotated[int, typer.Option(help="GPUs of a cluster's job.", rich_help_panel=_WHERE)]
Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="The results store: a folder for each run; made if missing."),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Show what would be run and its cost, and stop.")
]
Estimate = Annotated[
    bool,
    typer.Option("--estimate/--no-estimate", help="Try a few steps first, to say what it costs."),
]


def run(
    benchmark: BenchmarkName,
    methods: Methods = "all",
    seeds: Seeds = "0",
    preset: Preset = "paper",
    epochs: Epochs = None,
    changes: Set = None,
    jobs: Jobs = 1,
    threads: Threads = None,
    device: o.Device = "auto",
    engine: EngineName = "local",
    minutes: Minutes = 24 * 60,
    gpus: Gpus = 0,
    out: Out = Path("results/store"),
    plan_only: PlanOnly = False,
    cost: Estimate = True,
    debug: o.Debug = False,
) -> None:
    """Train several methods and seeds, side by side, into one results store.

    A run that is done is skipped, one that was interrupted goes on, one that fails is recorded with
    its error while the others go on. The exit status is 0 when all are done, 1 when some failed.
    """
    _command(dict(locals()), searched=False)


def sweep(
    benchmark: BenchmarkName,
    methods: Methods = "bayesagg",
    seeds: Seeds = "0",
    preset: Preset = "paper",
    epochs: Epochs = None,
    changes: Set = None,
    jobs: Jobs = 1,
    threads: Threads = None,
    device: o.Device = "auto",
    engine: EngineName = "local",
    minutes: Minutes = 24 * 60,
    gpus: Gpus = 0,
    out: Out = Path("results/store"),
    plan_only: PlanOnly = False,
    cost: Estimate = True,
    debug: o.Debug = False,
) -> None:
    """Train every combination of the hyper-parameters that the paper searched.

    The report picks, for each method, the configuration that is best on validation. Runs are kept
    as by the command run, in the same store.
    """
    _command(dict(locals()), searched=True)


def _command(given: Mapping[str, Any], *, searched: bool) -> None:
    with friendly(given["debug"]) as console:
        out: Path = given["out"]
        names = choose(given["methods"])
        todo = plan(
            Request(
                benchmark=given["benchmark"],
                methods=names,
                seeds=_seeds(given["seeds"]),
                preset=given["preset"],
                changes=pairs(given["changes"] or []),
                settings=_settings(given),
            ),
            out.resolve(),
            grids(given["benchmark"], names) if searched else None,
        )
        trial = _engine(given, out)(given["jobs"])
        trial.close(stop=False)
        threads: int = getattr(trial, "threads", 1)
        if not given["plan_only"]:
            prepare_folder(out)
        expected = None
        if given["cost"]:
            with console.status("a few steps of each method") as status:
                expected = estimate(
                    todo,
                    given["jobs"],
                    threads,
                    lambda name: status.update(f"a few steps of {name}"),
                )
        console.print(plan_table(todo, expected))
        if given["plan_only"]:
            return
        _run(todo, given, out, console)


def _run(todo: Sequence[Job], given: Mapping[str, Any], out: Path, console: Console) -> None:
    try:
        with Watcher(todo, console) as watcher:
            outcomes = execute(todo, _engine(given, out), given["jobs"], watcher)
    except KeyboardInterrupt:
        console.print("interrupted; finished epochs are kept, the same command goes on")
        raise typer.Exit(130) from None
    console.print(f"{summary(outcomes)}; store: {out}", soft_wrap=True, highlight=False)
    failed = [job for job, found in outcomes.items() if found.ending is Ending.FAILED]
    for job in failed:
        console.print(f"failed: {job.folder}", soft_wrap=True, highlight=False, style="red")
    console.print(f"next: python -m experiments report {out}", soft_wrap=True, highlight=False)
    if any(found.ending is Ending.INTERRUPTED for found in outcomes.values()):
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _engine(given: Mapping[str, Any], out: Path) -> Any:
    name, threads = given["engine"], given["threads"]
    if name == "local":
        return lambda parallel: Local(parallel, threads)
    clusters = {"slurm": "slurm", "submitit-local": "local"}
    if name not in clusters:
        raise SettingsError(f"engine = {name!r} is unknown: give local, slurm or submitit-local")

    def make(parallel: int) -> Engine:
        return Submitit(
            out.resolve() / "submitit",
            parallel,
            clusters[name],
            minutes=given["minutes"],
            threads=threads,
            gpus=given["gpus"],
        )

    return make


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"device": given["device"]}
    if given["epochs"] is not None:
        settings["epochs"] = given["epochs"]
    return settings


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise SettingsError(
            f"seeds = {text!r} cannot be read: give whole numbers, such as --seeds 0 1 2"
        ) from error
