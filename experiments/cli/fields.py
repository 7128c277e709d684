"""Fields of a dataclass as its source tells them: help need not wait for torch to be imported."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import SettingsError


@dataclass(frozen=True)
class Field:
    """One option.

    Attributes:
        name: Of the field.
        kind: ``int``, ``float``, ``bool`` or ``str``; what is anything else is read from text.
        default: For people.
        help: Its entry in the docstring.
        choices: Of a literal; empty where anything goes.
    """

    name: str
    kind: type
    default: str
    help: str
    choices: tuple[str, ...] = ()


class Source:
    """The source of a class.

    Args:
        place: ``module:Class``.

    Raises:
        SettingsError: There is no such class.
    """

    def __init__(self, place: str) -> None:
        module, _, name = place.partition(":")
        self._tree = ast.parse(_text(module))
        found = [n for n in self._tree.body if isinstance(n, ast.ClassDef) and n.name == name]
        if not found:
            raise SettingsError(
                f"benchmark = {place!r} cannot be found: {module} defines no class {name!r}"
            )
        self._class = found[0]
        self._bases = [Source(base) for base in self._places(module)]
        doc = inspect.cleandoc(ast.get_docstring(self._class) or "")
        self.about, _, attributes = doc.partition("Attributes:\n")
        self._help = dict(_entries(attributes))
        for base in self._bases:
            self._help = base._help | self._help

    def fields(self, defaults: Mapping[str, Any] | None = None) -> list[Field]:
        """Its own fields in their order, then those of its bases.

        Args:
            defaults: What a benchmark has in place of these defaults.
        """
        found: dict[str, Field] = {}
        for base in self._bases:
            found |= {field.name: field for field in base.fields(defaults)}
        own = {}
        for node in self._class.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                annotation = ast.unparse(node.annotation)
                if not annotation.startswith("ClassVar"):
                    default = None if node.value is None else _value(node.value)
                    name = node.target.id
                    own[name] = self._field(name, annotation, default, defaults or {})
        return [*({**own, **found} | own).values()]

    def literal(self, name: str) -> Any:
        """The value of a class attribute that is written out, here or in a base.

        The keywords of a call are a dict.
        """
        for node in self._class.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if name in map(ast.unparse, targets):
                    return _value(node.value)
        return next(filter(None, (base.literal(name) for base in self._bases)), None)

    def _places(self, module: str) -> Iterator[str]:
        """``module:Class`` of the base classes of this package."""
        bases = {ast.unparse(base) for base in self._class.bases}
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments."):
                yield from (f"{node.module}:{a.name}" for a in node.names if a.name in bases)
            elif isinstance(node, ast.ClassDef) and node.name in bases:
                yield f"{module}:{node.name}"

    def _field(
        self, name: str, annotation: str, default: Any, defaults: Mapping[str, Any]
    ) -> Field:
        types = {part.strip() for part in annotation.split("|")}
        plain = types & {"int", "float", "bool", "str"}
        rest = types - plain - {"None"}
        kind = {"int": int, "float": float, "bool": bool}.get(min(plain, default="str"), str)
        shown = "--seeds" if name == "split_seed" else defaults.get(name, default)
        return Field(
            name,
            str if rest or len(plain) > 1 else kind,
            "none" if shown is None else _shown(shown),
            self._help.get(name, ""),
            self._choices(annotation),
        )

    def _choices(self, annotation: str) -> tuple[str, ...]:
        for node in self._tree.body:  # an alias in the same file
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == annotation:
                annotation = ast.unparse(node.value)
        if not annotation.startswith("Literal["):
            return ()
        return tuple(ast.literal_eval(f"({annotation[8:-1]},)"))


def _text(module: str) -> str:
    """The text of a module; of those here without an import of what is around them."""
    if module.split(".")[0] == "experiments":
        root = Path(__file__).resolve().parents[2]
        return root.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise SettingsError(
            f"benchmark = {module!r}: there is no such module: give module:Class, with the "
            "module's folder in PYTHONPATH"
        )
    return Path(spec.origin).read_text(encoding="utf-8")


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """``name: what it is``, as Google's style has them."""
    block = inspect.cleandoc(re.split(r"\n\n(?=\w+:\n)", text)[0])
    for part in re.split(r"\n(?=\w+: )", block):
        name, _, told = part.partition(": ")
        yield name, re.sub(r"\s+", " ", told.replace("``", "")).strip()


def _value(node: ast.expr) -> Any:
    """What is written out; names and calls by their text, keywords of a call as a dict."""
    if isinstance(node, ast.Call) and node.keywords:
        return {str(item.arg): _value(item.value) for item in node.keywords}
    if isinstance(node, ast.Dict):
        return {
            _value(key): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
