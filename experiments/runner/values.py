"""Settings as text: ``NAME=VALUE`` on the command line."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.errors import SettingsError
from experiments.reading import json_text

__all__ = ["pairs", "read"]


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """``["a=1", "b=2"]`` by name.

    Raises:
        SettingsError: No ``=``, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise SettingsError(f"--set {text!r} cannot be read: write NAME=VALUE, epochs=20 say")
        if name in found:
            raise SettingsError(f"--set {name} is given twice: give it once")
        found[name.strip()] = value.strip()
    return found


def read(kind: type[Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Values for fields of a dataclass, from text.

    Args:
        kind: The dataclass.
        given: Text by field name.

    Raises:
        SettingsError: No such field, or text that is not of the field's type.
    """
    hints = typing.get_type_hints(kind)
    known = [item.name for item in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            raise SettingsError(
                f"{name} = {text!r} has no meaning for {kind.__name__}: give one of "
                f"{', '.join(known) or 'nothing, it has no options'}"
            )
        values[name] = _value(name, text, hints[name])
    return values


def _value(name: str, text: str, hint: Any) -> Any:
    choices = _alternatives(hint)
    if text.lower() in ("none", "null") and type(None) in choices:
        return None
    if text.lower() in ("true", "false") and bool in choices:
        return text.lower() == "true"
    for kind in (int, float):
        if kind in choices:
            try:
                return kind(text)
            except ValueError:
                continue
    if any(isinstance(c, type) and issubclass(c, Mapping) for c in choices):
        try:
            value = json_text(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
    if str in choices:
        return text
    wanted = " or ".join(getattr(c, "__name__", str(c)) for c in choices)
    raise SettingsError(f"{name} = {text!r} cannot be read as {wanted}")


def _alternatives(hint: Any) -> list[Any]:
    """The plain types that a hint allows; literals count as text."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [plain for part in typing.get_args(hint) for plain in _alternatives(part)]
    if origin is typing.Literal:
        return [str]
    return [origin or hint]
