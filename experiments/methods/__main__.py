"""``python -m experiments.methods [PAGE]``: what every method can do, as tables, or a page's."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from experiments.errors import OutputError
from experiments.methods import METHODS, Level, Method, Needs
from experiments.methods.torchjd import names, torchjd_method

COMMAND: Final = "python -m experiments.methods docs/methods.md"


def levels_table(methods: Iterable[type[Method]]) -> str:
    """Method by level, needs and scale, in Markdown; ``default`` marks the usual level."""
    head = ["method", *(level.value for level in Level), "needs", "scale of the update"]
    rows = [
        [
            f"`{method.name}`",
            *(_mark(method, level) for level in Level),
            ", ".join(["losses", *(need.value for need in Needs if need in method.needs)]),
            method.scale.value,
        ]
        for method in methods
    ]
    return _markdown(head, rows)


def options_table(methods: Iterable[type[Method]]) -> str:
    """Options of every method with their defaults, in Markdown."""
    rows = [
        [f"`{method.name}`", ", ".join(f"`{name}={value}`" for name, value in _options(method))]
        for method in methods
    ]
    return _markdown(["method", "options and defaults"], [row for row in rows if row[1]])


def page(text: str) -> str:
    """A page with every ``<!-- NAME -->`` ... ``<!-- end -->`` block made anew.

    Raises:
        OutputError: A block has a name that nothing is made for.
    """
    own = list(METHODS.values())
    theirs = [torchjd_method(name) for name in names()]
    blocks: Mapping[str, Any] = {
        "methods": lambda: _markdown(
            ["method", "title", "what it does"],
            [[f"`{m.name}`", m.title, _summary(m)] for m in own],
        ),
        "levels": lambda: levels_table(own),
        "options": lambda: options_table(own),
        "torchjd levels": lambda: levels_table(theirs),
        "torchjd options": lambda: options_table(theirs),
    }

    def made(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in blocks:
            raise OutputError(f"block {name!r} is unknown: it must be one of {', '.join(blocks)}")
        return f"<!-- {name} -->\n{blocks[name]()}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z ]+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)


def update(path: Path) -> bool:
    """Make the blocks of a file anew; whether that changed anything."""
    before = path.read_text(encoding="utf-8")
    after = page(before)
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def _mark(method: type[Method], level: Level) -> str:
    if level not in method.levels:
        return "–"
    return "default" if level is method.level and len(method.levels) > 1 else "yes"


def _summary(method: type[Method]) -> str:
    return " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())


def _options(method: type[Method]) -> list[tuple[str, Any]]:
    options = [
        (option.name, option.default)
        for option in dataclasses.fields(method.options_type)
        if option.name not in ("arguments", "seed")
        and not (option.name == "level" and len(method.levels) < 2)
    ]
    seeded = any(option.name == "seed" for option in dataclasses.fields(method.options_type))
    return [*options, *method.more_options(), *([("seed", "run's")] if seeded else [])]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str]) -> None:
    """Print the table, or write those of the pages that are named."""
    if not arguments:
        print(levels_table(METHODS.values()))
    for argument in arguments:
        print(f"{argument}: {'changed' if update(Path(argument)) else 'up to date'}")


if __name__ == "__main__":
    main(sys.argv[1:])
