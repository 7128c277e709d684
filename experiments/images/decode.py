"""Image files decoded once, into one file of bytes that is mapped into memory.

Pillow takes 0.3 ms of a processor for an image of CIFAR and 15 ms for one of ChestX-ray14, half an
hour an epoch; to gather decoded bytes takes 0.02 ms. So every image is decoded once, by threads
(Pillow lets go of the interpreter meanwhile), and no worker processes are needed. On disk CIFAR,
UTKFace and ChestX-ray14 take 0.18, 1.4 and 5.6 GB.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.errors import DataError
from experiments.files import unfinished
from experiments.files.cache import require_writable
from experiments.files.progress import progress
from experiments.images.files import fingerprint, some

_CHUNK: Final = 64
_LAYOUT: Final = 1
#: What images may be, whatever they are called; pillow hands other formats to outside programs.
_FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP")


@dataclass(frozen=True)
class Form:
    """How images are kept: resized (bilinear, antialiased) to one size.

    Attributes:
        size: Height and width in pixels.
        grey: One channel instead of red, green and blue.
    """

    size: int
    grey: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (1 if self.grey else 3, self.size, self.size)


def decode(file: Path, form: Form) -> NDArray[np.uint8]:
    """One image as [channels, size, size].

    Raises:
        Exception: It is damaged or not an image, or too large; Pillow raises many kinds.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            if image.mode.startswith(("I", "F")):  # which pillow would cut off at 255
                raise ValueError("more than 8 bits for each channel: save it with 8")
            image.load()
            plain = image.convert("L" if form.grey else "RGB")
    if plain.size != (form.size, form.size):
        plain = plain.resize((form.size, form.size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain).reshape(form.size, form.size, -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decoded(name: str, files: Sequence[Path], form: Form, folder: Path) -> Tensor:
    """All images as bytes, [N, channels, size, size], mapped from a file that is built once.

    Files are told apart by name, size and date: when one changes, or is added, all are decoded
    again, into another file.

    Raises:
        DataError: Images are missing or damaged (the first few are named), or the file cannot be
            written or was damaged later.
    """
    if not files:
        raise DataError(f"{name}: there is not one image to decode; give a folder that has some")
    key = fingerprint(files)[:16]
    kind = "grey" if form.grey else "rgb"
    path = folder / f"{name}-{form.size}{kind}-{key}-v{_LAYOUT}.bytes"
    length = len(files) * int(np.prod(form.shape))
    if not path.exists():
        require_writable(folder)
        _build(name, files, form, path)
    if path.stat().st_size != length:
        raise DataError(
            f"{path} is damaged ({path.stat().st_size:,} bytes instead of {length:,}): delete it, "
            "and it will be built again"
        )
    # A private mapping: nothing that is done to the tensor can reach the file.
    flat = torch.from_file(str(path), shared=False, size=length, dtype=torch.uint8)
    return flat.view(len(files), *form.shape)


def _build(name: str, files: Sequence[Path], form: Form, path: Path) -> None:
    """Decode into a temporary file, and put it in place when every image is in it."""
    temporary = unfinished(path)
    try:
        try:
            _reserve(temporary, len(files) * int(np.prod(form.shape)))
            pixels = np.memmap(
                temporary, dtype=np.uint8, mode="r+", shape=(len(files), *form.shape)
            )
            damaged = _decode_all(name, files, form, pixels)
            pixels.flush()
            del pixels
            if damaged:
                raise DataError(
                    f"{len(damaged):,} of {len(files):,} images are damaged ({some(damaged)}): "
                    "fetch them again, or delete them to go on without them"
                )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}): free the disk, or name another "
            "folder in the environment variable BAYESAGG_DATA"
        ) from error


def _reserve(path: Path, length: int) -> None:
    """Make a file of that length on the disk; a mapping that finds no room kills the process."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, length)
        else:
            file.truncate(length)


def _decode_all(
    name: str, files: Sequence[Path], form: Form, pixels: NDArray[np.uint8]
) -> list[str]:
    """Fill ``pixels``; returns what is damaged, as "path (reason)"."""

    def some_images(start: int) -> tuple[int, list[str]]:
        bad = []
        stop = min(start + _CHUNK, len(files))
        for index in range(start, stop):
            try:
                pixels[index] = decode(files[index], form)
            except Exception as error:
                bad.append(f"{files[index]} ({error or type(error).__name__})")
        return stop - start, bad

    damaged: list[str] = []
    starts = range(0, len(files), _CHUNK)
    with (
        progress(f"Decoding {name} (once)", len(files)) as tick,
        ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 32)) as pool,
    ):
        try:
            for done, bad in pool.map(some_images, starts):
                damaged += bad
                tick(done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return damaged
