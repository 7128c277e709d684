"""Finding image files, and saying clearly when they are not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments.errors import DataError

SUFFIXES: Final = (".jpg", ".jpeg", ".png")
"""Endings of image files, in small letters."""

_SHOWN: Final = 3


def some(names: Sequence[object]) -> str:
    """The first few names, for a message."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def require_folder(folder: Path, what: str) -> None:
    """Refuse a folder that is none.

    Raises:
        DataError: ``folder`` does not exist, or is a file.
    """
    if not folder.exists():
        raise DataError(f"there is no folder {folder}: --data is the one that holds {what}")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file: give the folder that holds {what}")


def images_in(folder: Path) -> tuple[list[Path], int]:
    """The image files directly in ``folder``, sorted by name, and the number of other files.

    Hidden files count as neither.

    Raises:
        DataError: The folder cannot be read.
    """
    found, others = [], 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_file():
                    continue
                if entry.name.lower().endswith(SUFFIXES):
                    found.append(entry.name)
                else:
                    others += 1
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror}): change its permissions"
        ) from error
    return [folder / name for name in sorted(found)], others


def fingerprint(files: Sequence[Path]) -> str:
    """Identifies files by name, size and date, without reading them.

    Raises:
        DataError: Files are missing; the first few are named.
    """
    digest = hashlib.sha256()
    missing = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            missing.append(file.name)
            continue
        told = f"{file.name}/{status.st_size}/{status.st_mtime_ns};"
        digest.update(told.encode(errors="surrogateescape"))
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(files):,} images are missing or cannot be read "
            f"({some(missing)}): restore them"
        )
    return digest.hexdigest()
