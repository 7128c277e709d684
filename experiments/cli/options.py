"""Options of commands that are no field of a class; ``generated`` has those that are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.cli.generated import OUTPUT, WHAT, WHERE, option


def _method(several: bool) -> inspect.Parameter:
    return option(
        "method",
        list[str] if several else str,
        "How tasks are combined: ls sums their losses (the usual baseline); bayesagg weighs their "
        "gradients by how certain they are (the paper's method). docs/methods.md lists all; "
        "torchjd:NAME takes one of TorchJD's, module:Class one of yours, NAME@LEVEL one that works "
        "at several levels." + (" all, paper and ensembles stand for many." if several else ""),
        WHAT,
        metavar="all|paper|ensembles|NAME" if several else "NAME",
        show_default="all (sweep: bayesagg)" if several else "bayesagg",
    )


def preset(about: str = "", **settings: Any) -> inspect.Parameter:
    """What other options start from; a benchmark tells about its own."""
    return option("preset", str, f"What other options start from.{about}", WHAT, **settings)


def _common(several: bool) -> list[inspect.Parameter]:
    return [_method(several), preset(), _seeds(several, "0"), *_changes(several)]


def _seeds(several: bool, default: str) -> inspect.Parameter:
    return option(
        "seeds",
        list[str] if several else int,
        "Decides initial weights, order of examples and, unless --split-seed is given, which "
        "examples are in which part." + (" A run for each." if several else ""),
        WHAT,
        metavar="N..." if several else "N",
        show_default=default,
    )


def _changes(several: bool) -> list[inspect.Parameter]:
    more = "; given twice, both values are run" if several else ""
    return [
        option(
            "level",
            str,
            "Where a method that compares gradients takes them: at all shared parameters, with one "
            "backward pass for each task, or at the features.",
            WHAT,
            metavar="losses|parameters|representation",
            show_default="the method's own",
        ),
        option(
            "changes",
            list[str],
            f"Any option of the benchmark, of training or of the method, such as c=0.5 for cagrad, "
            f"or METHOD.OPTION of one method alone; may be repeated{more}.",
            WHAT,
            flags=["--set"],
            metavar="NAME=VALUE",
        ),
    ]


_MINUTES: Final = option(
    "minutes",
    float,
    "Stop at the end of the last epoch that fits into so many minutes, with exit status 3.",
    OUTPUT,
    metavar="M",
    show_default="no limit",
)
_RECORD: Final = option(
    "record",
    int,
    "Write diagnostics of one training step in so many (features, posteriors, gradients, "
    "weights) into record.jsonl beside the results.",
    OUTPUT,
    metavar="EVERY",
    show_default="none",
)
_LOG: Final = option(
    "log",
    list[str],
    "Write every epoch's numbers elsewhere, too: into epochs.csv, for TensorBoard, Weights & "
    "Biases or MLflow (whose packages must be installed); may be repeated.",
    OUTPUT,
    metavar="csv|tensorboard|wandb|mlflow",
    show_default="none",
)
_DEBUG: Final = option("debug", bool, "Show the full traceback of an error.", OUTPUT)


def _out(help_: str, default: str) -> inspect.Parameter:
    return option("out", Path, help_, OUTPUT, metavar="DIR", show_default=default)


SINGLE: Final[Sequence[inspect.Parameter]] = (
    *_common(several=False),
    _out(
        "Folder for checkpoint, results and figures; made if missing.",
        "results/BENCHMARK-METHOD-seedS",
    ),
    option(
        "resume",
        bool,
        "Go on from the checkpoint in --out. Give the same settings; more --epochs and another "
        "--device are fine.",
        OUTPUT,
    ),
    option("overwrite", bool, "Start anew even if --out holds a run.", OUTPUT),
    option(
        "nproc",
        int,
        "Processes of this machine that share every batch, each with a GPU of its own where there "
        "are several.",
        WHERE,
        default=1,
    ),
    _MINUTES,
    _RECORD,
    _LOG,
    option("no_figures", bool, "Draw no figures.", OUTPUT),
    _DEBUG,
)
"""Of one run."""

_SCHEDULED: Final = (
    option("jobs", int, "Runs side by side.", WHERE, default=1),
    option(
        "engine",
        str,
        "Processes on this machine, jobs of a Slurm cluster through submitit (submitit-local: the "
        "same, tried on this machine), or workers of a Dask cluster.",
        WHERE,
        metavar="local|slurm|submitit-local|dask",
        default="local",
    ),
    _MINUTES,
    _RECORD,
    _LOG,
    option("plan", bool, "Show what would be run, and stop.", OUTPUT),
    option(
        "estimate",
        bool | None,
        "Try a few steps of each method first, to say what the plan costs; with a queue, as a job "
        "of it.",
        OUTPUT,
        flags=["--estimate/--no-estimate"],
        show_default="of runs and sweeps on this machine",
    ),
    _DEBUG,
)

RUNS: Final[Sequence[inspect.Parameter]] = (
    *_common(several=True),
    _out("The results store: a folder for each run; made if missing.", "results/store"),
    *_SCHEDULED,
)
"""Of many runs."""

SEARCH: Final = option(
    "search",
    int,
    "In place of all combinations so many trials of each method, chosen by Optuna (extra optuna). "
    "A number may then be a range, such as --lr 1e-4..1e-2. The same command goes on.",
    WHAT,
    metavar="TRIALS",
    show_default="all combinations",
)
"""Of a sweep."""

DEMO: Final[Sequence[inspect.Parameter]] = (
    option(
        "labels",
        list[str],
        "Labels of entries; may be repeated.",
        WHAT,
        flags=["--only"],
        metavar="LABEL...",
        show_default="all",
    ),
    _seeds(True, "the comparison's"),
    *_changes(several=False),
    _out("Folder for all runs.", "results/NAME"),
    *_SCHEDULED,
)
"""Of the demonstration, which shows all that there is."""

COMPARE: Final[Sequence[inspect.Parameter]] = (
    *DEMO,
    option("table_only", bool, "Run nothing; show what is there.", OUTPUT),
    option(
        "show",
        list[str],
        "Also columns of these figures, or of those that begin with this word, such as ECE; may be "
        "repeated.",
        OUTPUT,
        metavar="FIGURE...",
        show_default="none",
    ),
    option(
        "figure",
        Path,
        "Draw PATH.png and PATH.pdf, and PATH-record of what was recorded.",
        OUTPUT,
        metavar="PATH",
        show_default="none",
    ),
    option("markdown", bool, "Print the table as Markdown.", OUTPUT),
)
"""Of a comparison."""


def command(
    parameters: Sequence[inspect.Parameter], body: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """A function with these parameters that hands them on by name."""

    def run(**given: Any) -> None:
        body(given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
