"""Options that the fields of a class become: a benchmark's, of training, of the method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from experiments.cli.fields import Field, Source

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
    "only": ("--task",),
}


def option(name: str, kind: Any, help_: str, panel: str, **settings: Any) -> inspect.Parameter:
    """An option, spelt as its name with dashes unless ``flags`` are given.

    Args:
        name: Of the parameter.
        kind: Its type.
        help_: What it is for.
        panel: Of the help.
        settings: Of :class:`typer.Option`, ``flags``, and a ``default``; without one it is False
            for a bool, else None.
    """
    flags = settings.pop("flags", (f"--{name.replace('_', '-')}",))
    default = settings.pop("default", False if kind is bool else None)
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
        return option(
            field.name, bool | None, field.help, panel, flags=flags, show_default=field.default
        )
    settings: dict[str, Any] = {"metavar": "|".join(field.choices)} if field.choices else {}
    if several and field.kind is not str:  # read later: it may be a range
        settings["metavar"] = {int: "INTEGER", float: "FLOAT"}[field.kind]
    return option(
        field.name,
        list[str] if several else field.kind,
        field.help,
        panel,
        flags=_FLAGS.get(field.name, (f"--{dashed}",)),
        show_default=field.default,
        **settings,
    )


def of_benchmark(place: str, *, several: bool) -> list[inspect.Parameter]:
    """Options of a benchmark, of training and of Bayesian aggregation."""
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
        option(
            "queue",
            list[str],
            "Any other parameter of submitit, such as slurm_qos=high; may be repeated.",
            WHERE,
            metavar="NAME=VALUE",
        )
    ]


def _dict(kind: Source, name: str) -> dict[str, Any]:
    found = kind.literal(name)
    return found if isinstance(found, dict) else {}
