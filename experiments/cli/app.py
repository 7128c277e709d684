"""The commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer

from experiments.cli import (
    calibration,
    chestxray14,
    cifar_mtl,
    compare,
    demo,
    digits,
    figures,
    qm9,
    report,
    run,
    study,
    utkface,
)
from experiments.cli.launch import Command

__all__ = ["app"]

app = typer.Typer(
    help="Train and compare methods for multi-task learning on the paper's benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _add(command: Callable[..., None], epilog: str, cls: type[Command] = Command) -> None:
    """Add a command; its docstring is the help, one line of it per paragraph."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
    app.command(help=text, epilog=epilog, cls=cls)(command)


_add(demo.demo, demo.EPILOG)
_add(digits.digits, digits.EPILOG)
_add(qm9.qm9, qm9.EPILOG)
_add(cifar_mtl.cifar_mtl, cifar_mtl.EPILOG)
_add(chestxray14.chestxray14, chestxray14.EPILOG)
_add(utkface.utkface, utkface.EPILOG)
_add(compare.compare, compare.EPILOG)
_add(figures.figures, figures.EPILOG)
_add(report.report, report.EPILOG)
_add(run.run, run.RUN_EPILOG, run.SeveralValues)
_add(run.sweep, run.SWEEP_EPILOG, run.SeveralValues)
_add(calibration.calibration, calibration.EPILOG)
_add(study.study, study.EPILOG)
