"""Options as text: ``NAME=VALUE`` on the command line."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from experiments.errors import SettingsError
from experiments.files.reading import json_text


def pairs(texts: Iterable[str], flag: str = "set") -> dict[str, list[str]]:
    """``["a=1", "a=2", "b=x"]`` by name, values of one name in their order.

    Raises:
        SettingsError: No ``=``, or nothing in front of it.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        owner, dot, option = name.strip().rpartition(".")
        if not sign or not option:
            raise SettingsError(f"--{flag} {text!r} cannot be read: write it as NAME=VALUE")
        found.setdefault(f"{owner}{dot}{option.replace('-', '_')}", []).append(value.strip())
    return found


def read(kind: type[Any], name: str, value: Any) -> Any:
    """A value for a field of a dataclass; text becomes what the field's type says.

    Args:
        kind: The dataclass.
        name: Of the field; of one that the class lacks, text is read as JSON, or is a word.
        value: Text, or a value, which is taken as it is.

    Raises:
        SettingsError: Text that is not of the field's type.
    """
    if not isinstance(value, str):
        return value
    if name not in {item.name for item in dataclasses.fields(kind)}:
        return _json(value, value)
    choices = _alternatives(typing.get_type_hints(kind)[name])
    word = value.lower()
    if word in ("none", "null") and type(None) in choices:
        return None
    if word in ("true", "false") and bool in choices:
        return word == "true"
    for number in (int, float):
        if number in choices:
            with suppress(ValueError):
                return number(value)
    found = _several(value, choices)
    if found is not _UNREAD:
        return found
    if str in choices:
        return value
    wanted = " or ".join(_NAMES.get(choice, str(choice)) for choice in choices)
    if ends(value) is not None:
        wanted += ", or search the range with sweep --search"
    raise SettingsError(f"{name} = {value!r} cannot be read: give {wanted}")


def ends(value: Any) -> tuple[float, float] | None:
    """Both ends of a range of numbers, ``"1e-4..1e-2"``; None for anything else."""
    low, sign, high = value.partition("..") if isinstance(value, str) else ("", "", "")
    try:
        found = (float(low), float(high)) if sign else None
    except ValueError:
        return None
    return found if found is not None and all(map(math.isfinite, found)) else None


def whole(kind: type[Any], name: str) -> bool:
    """Whether a field takes whole numbers and no others.

    Raises:
        SettingsError: It takes no numbers.
    """
    choices = _alternatives(typing.get_type_hints(kind).get(name, float))
    if not {int, float} & {*choices}:
        raise SettingsError(f"{name} is no number and has no range: give its values")
    return float not in choices


def shown(value: Any) -> str:
    """For people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


_UNREAD: Any = object()
_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "none",
    Mapping: "one for each head such as age=0.5,gender=0.05",
    Sequence: "a list such as [0.5, 0.8]",
}


def _several(text: str, choices: Sequence[Any]) -> Any:
    """A list or a mapping of numbers: as JSON, or ``age=0.5,gender=0.05``."""
    value = _json(text, _UNREAD)
    if isinstance(value, dict) and Mapping in choices:
        return value
    if isinstance(value, list) and Sequence in choices:
        return value
    if "=" not in text or Mapping not in choices:
        return _UNREAD
    parts = [part.partition("=") for part in text.split(",")]
    try:
        found = {name.strip(): float(number) for name, _, number in parts}
    except ValueError:
        return _UNREAD
    if len(found) < len(parts):
        raise SettingsError(f"{text!r} names a head twice: give one number for each")
    return found


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json_text(text)
    except ValueError:
        return otherwise


def _alternatives(hint: Any) -> list[Any]:
    """The plain types that a hint allows; literals count as text."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [plain for part in typing.get_args(hint) for plain in _alternatives(part)]
    if origin is typing.Literal:
        return [str]
    return [origin or hint]
