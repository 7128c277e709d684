"""Options of commands: those that a class's fields become, and the few that are no field."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from experiments.cli.fields import Field, Source

__all__ = ["COMPARE", "RUNS", "SEARCH", "SINGLE", "command", "of_benchmark", "of_queue", "preset"]

WHAT: Final = "What to train"
DATA: Final = "Data and network"
TRAINING: Final = "Training"
BAYES: Final = "Bayesian aggregation (method bayesagg)"
WHERE: Final = "Where to run"
OUTPUT: Final = "Output"

#: Flags that are not the field's name.
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "learning_rate": ("--lr",),
    "head_bias": ("--bias/--no-bias",),
    "leave_batch_out": ("--leave-batch-out/--keep-batch",),
}


def _option(
    name: str, kind: Any, flags: Sequence[str], help_: str, panel: str, **settings: Any
) -> inspect.Parameter:
    default = settings.pop("default", None)
    annotation = kind if default is not None or kind is bool else kind | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[
            annotation, typer.Option(*flags, help=help_, rich_help_panel=panel, **settings)
        ],
    )


def _of_field(field: Field, panel: str, several: bool) -> inspect.Parameter:
    dashed = field.name.replace("_", "-")
    if field.kind is bool:
        flags = _FLAGS.get(field.name, (f"--{dashed}/--no-{dashed}",))
        return _option(
            field.name, bool | None, flags, field.help, panel, show_default=field.default
        )
    settings: dict[str, Any] = {"metavar": "|".join(field.choices)} if field.choices else {}
    if several and field.kind is not str:  # read later: it may be a range
        settings["metavar"] = {int: "INTEGER", float: "FLOAT"}[field.kind]
    return _option(
        field.name,
        list[str] if several else field.kind,
        _FLAGS.get(field.name, (f"--{dashed}",)),
        field.help,
        panel,
        show_default=field.default,
        **settings,
    )


def of_benchmark(place: str, *, several: bool) -> list[inspect.Parameter]:
    """Options of a benchmark, of training and of Bayesian aggregation.

    Args:
        place: ``module:Class`` of the benchmark.
        several: Whether an option may be given several values.
    """
    kind = Source(place)
    parts = (
        (kind.fields(), DATA),
        (Source("experiments.settings:Settings").fields(_dict(kind, "default_settings")), TRAINING),
        (
            Source("experiments.methods.bayesagg_options:BayesAggOptions").fields(
                _dict(kind, "method_options").get("bayesagg")
            ),
            BAYES,
        ),
    )
    found: dict[str, inspect.Parameter] = {}
    for fields, panel in parts:
        for field in fields:
            if field.name != "seed":  # --seeds
                found.setdefault(field.name, _of_field(field, panel, several))
    return [*found.values()]


def of_queue() -> list[inspect.Parameter]:
    """Options of a cluster's queue, and any other of its parameters as ``NAME=VALUE``."""
    fields = Source("experiments.runner.queues:Queue").fields()
    return [_of_field(field, WHERE, False) for field in fields if field.name != "more"] + [
        _option(
            "queue",
            list[str],
            ["--queue"],
            "Any other parameter of submitit, such as slurm_qos=high; may be repeated.",
            WHERE,
            metavar="NAME=VALUE",
        )
    ]


def _dict(kind: Source, name: str) -> dict[str, Any]:
    found = kind.literal(name)
    return found if isinstance(found, dict) else {}


def _method(several: bool) -> inspect.Parameter:
    return _option(
        "method",
        list[str] if several else str,
        ["--method"],
        "How tasks are combined: ls sums their losses (the usual baseline); bayesagg weighs their "
        "gradients by how certain they are (the paper's method). docs/methods.md lists all; "
        "torchjd:NAME takes one of TorchJD's, NAME@LEVEL one that works at several levels."
        + (" all, paper and ensembles stand for many." if several else ""),
        WHAT,
        metavar="all|paper|ensembles|NAME" if several else "NAME",
        show_default="all (sweep: bayesagg)" if several else "bayesagg",
    )


def preset(about: str = "", **settings: Any) -> inspect.Parameter:
    """What other options start from; a benchmark tells about its own."""
    return _option(
        "preset", str, ["--preset"], f"What other options start from.{about}", WHAT, **settings
    )


def _common(several: bool) -> list[inspect.Parameter]:
    return [
        _method(several),
        preset(),
        _seeds(several, "0"),
        *_changes(several),
    ]


def _seeds(several: bool, default: str) -> inspect.Parameter:
    return _option(
        "seeds",
        list[str] if several else int,
        ["--seeds"],
        "Decides initial weights, order of examples and, unless --split-seed is given, which "
        "examples are in which part." + (" A run for each." if several else ""),
        WHAT,
        metavar="N..." if several else "N",
        show_default=default,
    )


def _changes(several: bool) -> list[inspect.Parameter]:
    more = "; given twice, both values are run" if several else ""
    return [
        _option(
            "level",
            str,
            ["--level"],
            "Where a method that compares gradients takes them: at all shared parameters, with one "
            "backward pass for each task, or at the features.",
            WHAT,
            metavar="losses|parameters|representation",
            show_default="the method's own",
        ),
        _option(
            "changes",
            list[str],
            ["--set"],
            f"Any option of the benchmark, of training or of the method, such as c=0.5 for cagrad, "
            f"or METHOD.OPTION of one method alone; may be repeated{more}.",
            WHAT,
            metavar="NAME=VALUE",
        ),
    ]


_MINUTES: Final = _option(
    "minutes",
    float,
    ["--minutes"],
    "Stop at the end of the last epoch that fits into so many minutes, with exit status 3.",
    OUTPUT,
    metavar="M",
    show_default="no limit",
)
_RECORD: Final = _option(
    "record",
    int,
    ["--record"],
    "Write diagnostics of one training step in so many (features, posteriors, gradients, "
    "weights) into record.jsonl beside the results.",
    OUTPUT,
    metavar="EVERY",
    show_default="none",
)
_LOG: Final = _option(
    "log",
    list[str],
    ["--log"],
    "Write every epoch's numbers elsewhere, too: into epochs.csv, for TensorBoard, Weights & "
    "Biases or MLflow (whose packages must be installed); may be repeated.",
    OUTPUT,
    metavar="csv|tensorboard|wandb|mlflow",
    show_default="none",
)
_DEBUG: Final = _option(
    "debug", bool, ["--debug"], "Show the full traceback of an error.", OUTPUT, default=False
)


def _out(help_: str, default: str) -> inspect.Parameter:
    return _option("out", Path, ["--out"], help_, OUTPUT, metavar="DIR", show_default=default)


SINGLE: Final[Sequence[inspect.Parameter]] = (
    *_common(several=False),
    _out(
        "Folder for checkpoint, results and figures; made if missing.",
        "results/BENCHMARK-METHOD-seedS",
    ),
    _option(
        "resume",
        bool,
        ["--resume"],
        "Go on from the checkpoint in --out. Give the same settings; more --epochs and another "
        "--device are fine.",
        OUTPUT,
        default=False,
    ),
    _option(
        "overwrite",
        bool,
        ["--overwrite"],
        "Start anew even if --out holds a run.",
        OUTPUT,
        default=False,
    ),
    _option(
        "nproc",
        int,
        ["--nproc"],
        "Processes of this machine that share every batch, each with a GPU of its own where there "
        "are several.",
        WHERE,
        default=1,
    ),
    _MINUTES,
    _RECORD,
    _LOG,
    _option("figures", bool, ["--figures/--no-figures"], "Draw figures.", OUTPUT, default=True),
    _DEBUG,
)
"""Of one run."""

_SCHEDULED: Final = (
    _option("jobs", int, ["--jobs"], "Runs side by side.", WHERE, default=1),
    _option(
        "engine",
        str,
        ["--engine"],
        "Processes on this machine, jobs of a Slurm cluster through submitit (submitit-local: the "
        "same, tried on this machine), or workers of a Dask cluster.",
        WHERE,
        metavar="local|slurm|submitit-local|dask",
        default="local",
    ),
    _MINUTES,
    _RECORD,
    _LOG,
    _option("plan", bool, ["--plan"], "Show what would be run, and stop.", OUTPUT, default=False),
    _option(
        "estimate",
        bool | None,
        ["--estimate/--no-estimate"],
        "Try a few steps of each method first, to say what the plan costs; with a queue, as a job "
        "of it.",
        OUTPUT,
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

SEARCH: Final = _option(
    "search",
    int,
    ["--search"],
    "In place of all combinations so many trials of each method, chosen by Optuna (extra optuna). "
    "A number may then be a range, such as --lr 1e-4..1e-2. The same command goes on.",
    WHAT,
    metavar="TRIALS",
    show_default="all combinations",
)
"""Of a sweep."""

COMPARE: Final[Sequence[inspect.Parameter]] = (
    _option(
        "only",
        list[str],
        ["--only"],
        "Labels of entries; may be repeated.",
        WHAT,
        metavar="LABEL...",
        show_default="all",
    ),
    _seeds(True, "the comparison's"),
    *_changes(several=False),
    _out("Folder for all runs.", "results/NAME"),
    *_SCHEDULED,
    _option(
        "table_only",
        bool,
        ["--table-only"],
        "Run nothing; show what is there.",
        OUTPUT,
        default=False,
    ),
    _option(
        "show",
        list[str],
        ["--show"],
        "Also columns of these figures, or of those that begin with this word, such as ECE; may be "
        "repeated.",
        OUTPUT,
        metavar="FIGURE...",
        show_default="none",
    ),
    _option(
        "figure",
        Path,
        ["--figure"],
        "Draw PATH.png and PATH.pdf, and PATH-record of what was recorded.",
        OUTPUT,
        metavar="PATH",
        show_default="none",
    ),
    _option(
        "markdown",
        bool,
        ["--markdown"],
        "Print the table as Markdown.",
        OUTPUT,
        default=False,
    ),
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
