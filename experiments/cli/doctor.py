"""``python -m experiments doctor``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.doctor import Finding, State

_STYLES = {State.FINE: "green", State.MISSING: "red", State.WRONG: "red", State.LEFT: "dim"}


def doctor(
    benchmark: Annotated[
        str | None,
        typer.Argument(
            metavar="[BENCHMARK]",
            help="A benchmark that is to run: what it needs counts as asked for.",
            show_default="all are looked at, none is asked for",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where its data are, if elsewhere.")
    ] = None,
    imports: Annotated[
        bool, typer.Option("--imports", help="Import every package that is installed, too.")
    ] = False,
) -> None:
    """Say what is installed here, which data are there, and what would mend the rest.

    Data are looked at, not read; of packages, those that are needed are imported. The exit status
    is 1 where something that is asked for is missing or does not work: what the library needs, and
    what the benchmark does.
    """
    from experiments import doctor as look
    from experiments import registry
    from experiments.errors import SettingsError

    console = Console(markup=False, emoji=False, highlight=False)
    try:
        if benchmark is not None:
            registry.place(benchmark)
        elif data is not None:
            raise SettingsError(f"data = {data!r} is of no benchmark: name one before it")
    except SettingsError as error:
        Console(stderr=True, markup=False, highlight=False).print(f"error: {error}", style="red")
        raise typer.Exit(2) from None
    torch = look.broken("torch")
    needed = {} if torch or benchmark is None else look.needs(benchmark)
    found = list(look.machine())
    _show(console, "Here", found)
    libraries = list(look.packages(needed, imports=imports))
    _show(console, "Packages", libraries)
    sets = []
    if not torch:
        names = registry.names() if benchmark is None else [benchmark]
        sets = list(look.benchmarks(names, data))
        _show(console, "Benchmarks", sets)
    asked = [*found, *libraries, *(sets if benchmark is not None else [])]
    bad = [one.name for one in asked if one.bad]
    if bad:
        console.print(f"To be mended: {', '.join(bad)}", style="red")
        raise typer.Exit(1)
    whole = "All that is asked for is there." if benchmark else "What the library needs is there."
    console.print(whole, style="green")


def _show(console: Console, title: str, findings: Iterable[Finding]) -> None:
    """A table in which long lines are wrapped, never cut."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False, title_justify="left")
    table.add_column(overflow="fold", no_wrap=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for one in findings:
        told = Text("".join(letter if letter.isprintable() else "�" for letter in one.told))
        if one.remedy:
            told.append(f"\n{one.remedy}", style="bold" if one.bad else "dim")
        table.add_row(Text(one.state.value, style=_STYLES[one.state]), one.name, told)
    console.print(table)
