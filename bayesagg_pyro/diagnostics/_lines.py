"""A file of JSON lines that survives interruption: one line per record, appended whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesagg_pyro.errors import SettingError

Row = dict[str, Any]


def read(path: str | os.PathLike[str]) -> list[Row]:
    """Read a recorder's file back as a table: a list of rows {column: value}.

    A last line that an interruption cut short is left out. `pandas.DataFrame(read(path))` makes a
    data frame; columns that a step could not give (weights in the warm-up) are missing there.

    Args:
        path: of the file.

    Raises:
        SettingError: there is no such file, or it has lines that no recorder wrote.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SettingError(
            f"no readable record at {path} ({error.strerror or error}): give the file that a "
            "diagnostics.Recorder wrote"
        ) from error
    rows: list[Row] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise SettingError(
                f"line {number} of {path} is no record of a step; the file is damaged, or is not "
                "one that diagnostics.Recorder wrote: delete it, or name another"
            )
        rows.append(row)
    return rows


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row in one write, so that a reader never meets half of one that is not the last."""
    data = _line(row)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def truncate(path: Path, step: int) -> None:
    """Leave only rows before `step`, and no torn line; the file is replaced at once."""
    if not (path.is_file() or path.is_dir()):  # nothing yet, or a device, never to be replaced
        return
    kept = [row for row in read(path) if row["step"] < step]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(b"".join(_line(row) for row in kept))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _line(row: Mapping[str, Any]) -> bytes:
    plain = {key: _plain(value) for key, value in row.items()}
    return json.dumps(plain, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    """A number rounded to six digits; null where it is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
