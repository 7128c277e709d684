"""Files that somebody else may have written, read as data: nothing in them can run.

A file of ``torch.save`` is a pickle, and a pickle may call anything. ``torch.load`` refuses that
only when it is asked to, some libraries ask again without, and importing a library may widen what
is allowed. So every such file is read through here.
"""

from __future__ import annotations

import errno
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")
_ZIP: Final = b"PK\x03\x04"
_FORCED: Final = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


class DamagedFileError(ValueError):
    """A file was read, and its content is not what it should be."""


def parsed(path: Path, parse: Callable[[IO[bytes]], _T]) -> _T:
    """What ``parse`` makes of a file.

    Raises:
        OSError: The file cannot be opened or read, which says nothing about its content; also for
            content that asks for more memory than there is.
        DamagedFileError: ``parse`` failed at the content, in whatever way.
    """
    try:
        with path.open("rb") as file:
            return parse(file)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error
    except Exception as error:
        # A seek to where a cut archive points is an OSError as well, and pillow's have no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DamagedFileError(reason(error)) from error


def reason(error: BaseException) -> str:
    """An error's type and first sentence; later ones advise to load files without protection."""
    told = " ".join(str(error).split()).split(". ")[0][:300]
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


@contextmanager
def only_data(*classes: type) -> Iterator[None]:
    """Let ``torch.load`` make tensors, plain values and ``classes``, whoever calls it and however.

    Outside, the caller's settings are as they were. They belong to the process, not to a thread.
    """
    allowed = torch.serialization.get_safe_globals()
    before = {name: os.environ.pop(name, None) for name in _FORCED}
    try:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(list(classes))
        os.environ[_FORCED[0]] = "1"
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)
        del os.environ[_FORCED[0]]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def finite(value: object) -> bool:
    """Whether this is an ordinary tensor of real numbers, all of them finite."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not (value.is_quantized or value.is_complex())
        and bool(value.isfinite().all())
    )


def tensors(file: IO[bytes]) -> Any:
    """What ``torch.save`` wrote, on the CPU: tensors, plain values, and lists and dicts of them.

    For :func:`parsed`; fails in many ways where the file is damaged, or holds more than data.
    """
    if file.read(len(_ZIP)) == _ZIP:
        # torch does not notice a flipped bit; the checksums of the archive do.
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} does not fit")
    elif file.seek(0) == 0 and tarfile.is_tarfile(
        file
    ):  # torch's oldest format; reading it safely came late
        raise ValueError("a tar archive")
    file.seek(0)
    with only_data():
        return torch.load(file, map_location="cpu", weights_only=True)
