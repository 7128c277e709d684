"""What every command has: refusals as one line, exit statuses, lists of values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape
from typer.core import TyperCommand

if TYPE_CHECKING:
    from experiments.tables.escaping import PlainConsole

Debug = Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")]

_MISSPELT: Final = {
    "--seed": "--seeds",
    "--learning-rate": "--lr",
    "--scale": "--reduction",
    "--only": "--task",
}


class Command(TyperCommand):
    """Takes ``--seeds 0 1 2``, shows its help to the letter, and refuses empty arguments.

    An empty path would mean the folder that one is in. Every option has one spelling.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shown: list[Any] = [self, *self.params]
        for item in shown:
            if getattr(item, "help", None):
                item.help = escape(item.help)
        self.epilog = escape(self.epilog) if self.epilog else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command does."""
        taken = {flag for item in self.params for flag in item.opts}
        for before, word in zip(["", *args], args, strict=False):
            name, sign, value = word.partition("=")
            if not word.strip() or (sign and name.startswith("--") and not value.strip()):
                told = name if sign else before if before.startswith("-") else "an argument"
                _refuse(f"{told} = {value!r} cannot work: give it a value")
            if name not in taken and _MISSPELT.get(name) in taken:
                _refuse(f"there is no option {name}: it is spelt {_MISSPELT[name]}")
        several = {
            flag for item in self.params if getattr(item, "multiple", False) for flag in item.opts
        }
        ctx.allow_extra_args = True
        extra = super().parse_args(ctx, list(_repeated(args, several)))
        if extra and not ctx.resilient_parsing:
            words = " ".join(map(str, extra))
            _refuse(f"{words!r} is too much: only run and sweep take several values of an option")
        return extra


def _refuse(text: str) -> None:
    with friendly(debug=False):
        from experiments.errors import SettingsError

        raise SettingsError(text)


def _repeated(args: list[str], several: set[str]) -> Iterator[str]:
    """``--seeds 0 1`` as ``--seeds 0 --seeds 1``, for options that take several values."""
    flag, count = "", 0
    for word in args:
        if word.startswith("--"):
            flag, count = word, 0
        elif flag in several:
            count += 1
            if count > 1:
                yield flag
        yield word


@contextmanager
def friendly(debug: bool) -> Iterator[PlainConsole]:
    """Print what goes wrong as one line and exit with status 2.

    It is 130 after Ctrl-C, and 3 when the given minutes are over.

    Args:
        debug: Let the exception through, with its traceback.
    """
    from bayesagg_pyro.errors import BayesAggError
    from experiments.errors import ExperimentError, OutOfTime, RunInterrupted
    from experiments.tables.escaping import PlainConsole, visible

    console = PlainConsole()
    errors = PlainConsole(stderr=True)
    first = os.environ.get("RANK", "0") == "0"  # of several processes, which say the same
    try:
        yield console
    except RunInterrupted as error:
        if first:
            errors.say(visible(error), "yellow")
        raise typer.Exit(130) from None
    except OutOfTime as stopped:
        if first:
            console.say(visible(stopped))
        raise typer.Exit(3) from None
    except (ExperimentError, BayesAggError, OSError) as error:  # the last of a file or a folder
        if debug:
            raise
        errors.say(visible(f"error: {error}"), "red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(130) from None
