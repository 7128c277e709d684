"""Writing files so that a reader, or a power cut, never meets half of one."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from experiments.errors import OutputError


def prepare_folder(folder: Path) -> list[Path]:
    """Make ``folder`` and prove that files can be written there.

    Returns:
        It and those around it that were not there before, the innermost first.

    Raises:
        OutputError: They cannot; nothing is left behind.
    """
    try:
        # Raises as well, for a name that is too long.
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise OutputError(
            f"cannot write into the output folder {folder} ({error.strerror or error}): "
            "choose another with --out, or free its name, its permissions or the disk"
        ) from error
    return new


def unfinished(path: Path) -> Path:
    """A hidden name beside ``path`` for its content in the making, which no other process has.

    Processes in several containers, or on several machines, can have the same number.
    """
    return path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}.tmp")


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, and put it in place.

    ``path`` holds the old content or the new one at any moment, whatever interrupts.

    Raises:
        OutputError: It could not be written; the old content is intact.
    """
    device = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
    if device or not path.name:  # a device would be replaced by a file
        raise OutputError(f"cannot write '{path}': give the name of a file")
    temporary = unfinished(path)
    target: _Target | None = None
    try:
        try:
            target = _Target(temporary, "wb")
            with io.BufferedWriter(target) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)
    except Exception as error:
        # What torch's writer raises after Ctrl-C, or on a full disk, says neither.
        reason = error if target is None or target.failed is None else target.failed
        before: BaseException | None = reason
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise before from None
            before = before.__context__
        if not isinstance(reason, OSError):
            raise
        raise OutputError(
            f"cannot write {path} ({reason.strerror or reason}): free its permissions or the disk"
        ) from error


class _Target(io.FileIO):
    """Remembers why it could not be written, or Ctrl-C: torch's writer hides either."""

    failed: BaseException | None = None

    def write(self, data: Any) -> int:
        """As any file's."""
        try:
            return super().write(data)
        except BaseException as error:
            self.failed = error
            raise


def write_text(path: Path, text: str) -> None:
    """Write text whole or not at all, as :func:`write_atomically` does."""
    write_atomically(path, lambda file: file.write(text.encode(errors="replace")))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` as strict JSON: numbers that are not finite become null."""
    text = json.dumps(strict(value), indent=1, allow_nan=False, ensure_ascii=False)
    write_text(path, text + "\n")


def strict(value: Any) -> Any:
    """``value`` with tuples as lists, paths as text and non-finite numbers as None.

    The name of a file may be any bytes; what of it is no letter is a question mark.
    """
    if isinstance(value, Mapping):
        return {strict(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return strict(str(value))
    if isinstance(value, Sequence):
        return [strict(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no place in a results file: {value!r}")


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
