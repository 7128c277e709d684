"""Arrays in a file that is written whole or not at all, and checked when it is read.

The file is a compressed npz with one extra member, ``about``: JSON with the layout's version, the
SHA-256 of the arrays' content, and whatever the writer wants remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.errors import DamagedDataError, DataError, MissingDataError, OutputError
from experiments.files import prepare_folder, reading, write_atomically

LAYOUT: Final = 1
"""Version of the array layout; a file of another version is refused."""

FOLDER_VARIABLE: Final = "BAYESAGG_DATA"
"""Environment variable that names the folder for built data sets."""

REBUILD: Final = "delete it, and it will be built again"
"""What helps with a file that was built here."""

_ABANDONED_SECONDS: Final = 86_400.0

Arrays = dict[str, NDArray[Any]]


def default_folder() -> Path:
    """``$BAYESAGG_DATA``, or ``bayesagg_pyro`` in the user's cache folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bayesagg_pyro"


def checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, independent of the order and of compression."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {little.dtype.str} {little.shape};".encode())
        digest.update(little.data)
    return digest.hexdigest()


def require_writable(folder: Path) -> None:
    """Make ``folder`` and prove that it can be written, before time is spent on its content.

    What processes that were killed left unfinished is removed, once nobody can be at work on it.

    Raises:
        DataError: It cannot.
    """
    try:
        prepare_folder(folder)
    except OutputError as error:
        raise DataError(
            f"the folder for built data, {folder}, cannot be written ({_reason(error)}); "
            f"name another in the environment variable {FOLDER_VARIABLE}"
        ) from error
    for left in folder.glob(f".*.{16 * '[0-9a-f]'}.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()


def write(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> str:
    """Write ``arrays`` and return their checksum.

    Several processes may write the same file at once: each prepares its own temporary file, and the
    last one to finish puts its (equal) content in place.

    Raises:
        DataError: The file cannot be written; an old one is intact.
    """
    total = checksum(arrays)
    note = json.dumps({**about, "layout": LAYOUT, "sha256": total})
    members: dict[str, Any] = {**arrays, "about": np.array(note)}
    try:
        write_atomically(path, lambda file: np.savez_compressed(file, **members))
    except OutputError as error:
        raise DataError(
            f"{path} cannot be written ({_reason(error)}); free the disk, or name another folder "
            "in the environment "
            f"variable {FOLDER_VARIABLE}"
        ) from error
    return total


def read(path: Path, remedy: str = REBUILD) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the note of a file, after checking that they are what was written.

    Args:
        path: The file.
        remedy: What the reader of an error can do about it.

    Raises:
        DataError: There is no such file, it is damaged or cannot be read, or its layout is another.
    """
    try:
        content = reading.arrays(path, remedy)
    except MissingDataError as error:
        raise DataError(f"there is no data file {path}; {remedy}") from error
    try:
        about: dict[str, Any] = reading.json_text(str(content.pop("about", "")))
        reading.fits(about, {"source?": str})
    except ValueError as error:
        raise _damaged(path, f"its note: {error}", remedy) from error
    if about.get("layout") != LAYOUT:
        raise DataError(
            f"{path} has layout {about.get('layout')!r}, this version reads layout {LAYOUT}; "
            f"{remedy}"
        )
    if checksum(content) != about.get("sha256"):
        raise _damaged(path, "its checksum does not match its content", remedy)
    return content, about


def _damaged(path: Path, reason: str, remedy: str) -> DamagedDataError:
    return DamagedDataError(f"{path} is damaged ({reason}); {remedy}")


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    return str(getattr(cause, "strerror", None) or cause or error)
