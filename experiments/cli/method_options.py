"""Options of a method, as words on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.errors import SettingsError
from experiments.reading import json_text

__all__ = ["merged"]


def merged(
    named: Mapping[str, Any], level: str | None, pairs: Sequence[str] | None
) -> dict[str, Any]:
    """Options that have a flag of their own, the level, and those given as ``NAME=VALUE``.

    Values are read as JSON (numbers, true and false, lists), else taken as words.

    Args:
        named: By name; None stands for "not given".
        level: Of the gradients, or None.
        pairs: ``NAME=VALUE``.

    Raises:
        SettingsError: A pair has no ``=``, or an option is given twice.
    """
    given = {**named, "level": level}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SettingsError(f"option = {pair!r} cannot be read: write it as NAME=VALUE")
        if given.get(name) is not None:
            raise SettingsError(f"{name} is given twice: leave one out")
        given[name] = _value(text.strip())
    return given


def _value(text: str) -> Any:
    try:
        return json_text(text)
    except ValueError:
        return text
