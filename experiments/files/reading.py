"""Everything that experiments read from files: as data, and as data of the expected shape.

Whoever wrote a file, reading it runs nothing and fails with one sentence. What cannot be opened is
told apart from what is damaged: only the latter may be deleted.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DamagedDataError, DataError, MissingDataError
from models.files import DamagedFileError, parsed, tensors

_T = TypeVar("_T")
_DEPTH: Final = 50
_LARGEST: Final = 1e100
"""Numbers of a record stay below; sums of squares of larger ones would not be finite."""

NUMBER: Final = (int, float)
VALUE: Final = (int, float, None)
"""Patterns for :func:`fits`: a finite number; the same, or null where there is none."""

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def read(path: Path, parse: Callable[[IO[bytes]], _T], remedy: str) -> _T:
    """What ``parse`` makes of a file.

    Args:
        path: The file.
        parse: Is given the open file; may fail in any way.
        remedy: What helps when the file is missing or damaged.

    Raises:
        DamagedDataError: The content is not what it should be.
        MissingDataError: There is no such file.
        DataError: It cannot be read for now, or is a folder.
    """
    try:
        return parsed(path, parse)
    except DamagedFileError as error:
        raise DamagedDataError(f"{path} is damaged ({error}): {remedy}") from error
    except OSError as error:
        if error.errno in _ABSENT:
            raise MissingDataError(f"there is no file {path}: {remedy}") from error
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}), which says nothing about its "
            "content: change its permissions, or try again"
        ) from error


def saved_tensors(path: Path, remedy: str) -> Any:
    """What ``torch.save`` wrote, if it is data; raises as :func:`read` does."""
    return read(path, tensors, remedy)


def json_file(path: Path, remedy: str, pattern: Any = Mapping) -> Any:
    """A JSON file that fits ``pattern``; raises as :func:`read` does."""

    def parse(file: IO[bytes]) -> Any:
        value = json_text(file.read().decode())
        fits(value, pattern)
        return value

    return read(path, parse, remedy)


def json_text(text: str) -> Any:
    """Strict JSON: finite numbers of a sensible size, text that can be written, a few levels.

    Raises:
        ValueError: It is not.
    """
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"nested more than {_DEPTH} levels deep") from None
    sensible(value)
    return value


def _loaded(file: IO[bytes]) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except ValueError as error:
        if "pickle" in str(error):  # some releases advise to read it without protection
            raise ValueError("no array of NumPy's, or one of objects") from None
        raise


def array(path: Path, remedy: str) -> NDArray[Any]:
    """The array of an npy file, not of objects; raises as :func:`read` does."""

    def parse(file: IO[bytes]) -> NDArray[Any]:
        found = _loaded(file)
        if not isinstance(found, np.ndarray):
            raise TypeError("an archive, not a single array")
        return found

    return read(path, parse, remedy)


def arrays(path: Path, remedy: str) -> dict[str, NDArray[Any]]:
    """The members of an npz archive, none of them objects; raises as :func:`read` does."""

    def parse(file: IO[bytes]) -> dict[str, NDArray[Any]]:
        found = _loaded(file)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise TypeError("a single array, not an archive")
        with found:
            return {name: found[name] for name in found.files}

    return read(path, parse, remedy)


def unpickled(path: Path, md5: str, remedy: str) -> Any:
    """A pickle that a publisher's checksum vouches for; raises as :func:`read` does."""

    def parse(file: IO[bytes]) -> Any:
        content = file.read()  # checked and read in one piece, so that it cannot change in between
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            raise ValueError("its checksum is not the published one")
        return pickle.loads(content, encoding="latin1")

    return read(path, parse, remedy)


def rows(lines: Iterable[str], columns: Iterable[str], **dialect: Any) -> Iterator[dict[str, str]]:
    """The rows of a table with a header, each with one cell for every column.

    Raises:
        ValueError: A column is missing, or twice; a row is shorter or longer than the header.
    """
    table = csv.DictReader(lines, **dialect)
    header = table.fieldnames or ()
    for name in columns:
        if (count := header.count(name)) != 1:
            raise ValueError(
                f"there is no column {name!r}"
                if not count
                else f"{count} columns are named {name!r}"
            )
    for row in table:
        cells = len(header) + len(row.pop(None, ())) - list(row.values()).count(None)
        if cells != len(header):
            raise ValueError(f"line {table.line_num}: {cells} cells instead of {len(header)}")
        yield row


def fits(value: Any, pattern: Any, at: str = "") -> None:
    """Check nested values against a pattern.

    Args:
        value: From a file.
        pattern: A type or a tuple of types; ``None`` among them for null. ``[p]`` is a list of p,
            ``{str: p}`` a mapping to p; ``{"name": p, "other?": p}`` a mapping with these entries,
            the second if it is there, and any others. A bool is no number, nor is NaN.
        at: Where the value stands, for the message.

    Raises:
        ValueError: The first place where it does not fit.
    """
    place = at or "it"
    if isinstance(pattern, list):
        _is(value, (list, tuple), place)
        for index, item in enumerate(value):
            fits(item, pattern[0], f"{at}[{index}]")
    elif isinstance(pattern, dict):
        _is(value, (Mapping,), place)
        for key, part in pattern.items():
            if key is str:
                for name, item in value.items():
                    _is(name, (str,), f"a name in {place}")
                    fits(item, part, f"{at}.{name}".lstrip("."))
            elif (name := key.rstrip("?")) in value:
                fits(value[name], part, f"{at}.{name}".lstrip("."))
            elif not key.endswith("?"):
                raise ValueError(f"{place} has no {name}")
    else:
        _is(value, pattern if isinstance(pattern, tuple) else (pattern,), place)


def sensible(value: Any, depth: int = 0) -> None:
    """Check that a value is nested plain data that can be compared, shown and written.

    Raises:
        ValueError: It is not.
    """
    if depth > _DEPTH:
        raise ValueError(f"nested more than {_DEPTH} levels deep")
    if isinstance(value, dict):
        for key, item in value.items():
            sensible(key, depth + 1)
            sensible(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            sensible(item, depth + 1)
    elif isinstance(value, str):
        value.encode()  # half of a surrogate pair could be neither shown nor written
    elif isinstance(value, (int, float)):
        if not abs(value) <= _LARGEST:
            raise ValueError("a number is too large")
    elif value is not None:
        raise ValueError(f"a {type(value).__name__} among plain values")


def _is(value: Any, kinds: tuple[Any, ...], place: str) -> None:
    allowed = tuple(type(None) if kind is None else kind for kind in kinds)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise ValueError(f"{place} is a {type(value).__name__}, not {names}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")
