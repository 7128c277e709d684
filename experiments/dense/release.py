"""Files as the preprocessed public releases of NYUv2 and Cityscapes have them.

``train/`` and ``val/`` hold folders ``image``, ``label``, ``depth`` and (NYUv2) ``normal`` with one
NumPy file for each image, ``0.npy``, ``1.npy``, ...
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.dense.frames import IGNORED, Frames
from experiments.dense.split import Part
from experiments.errors import DataError, OutputError
from experiments.files import reading
from experiments.images.files import require_folder, some
from experiments.settings import require

_CHANNELS: Final = {"image": 3, "label": 0, "depth": 1, "normal": 3}
_BRIGHTEST: Final = 1.01
_REMEDY: Final = "fetch it again"


class Release:
    """One of the two parts of a release; images are read from the disk when they are asked for.

    Args:
        folder: That holds ``train`` and ``val``.
        part: ``"train"`` or ``"val"``.
        classes: How many there are.
        normals: Whether there are normals.
        shrink: How many times smaller images are handed over, in height and width.

    Raises:
        DataError: Folders or files are missing; the message names them.
    """

    def __init__(
        self, folder: Path, part: str, classes: int, *, normals: bool, shrink: int = 1
    ) -> None:
        place = folder / part
        require_folder(place, "image, label and depth of a preprocessed release")
        label = place / f"label_{classes}"  # some releases keep several sets of classes
        self._folders = {
            "image": place / "image",
            "label": label if label.is_dir() else place / "label",
            "depth": place / "depth",
            **({"normal": place / "normal"} if normals else {}),
        }
        found = {name: _numbers(where) for name, where in self._folders.items()}
        for name, numbers in found.items():
            if missing := sorted(found["image"] - numbers) or sorted(numbers - found["image"]):
                raise DataError(
                    f"{place}/image and {self._folders[name]} do not hold the same numbers (in one "
                    f"alone: {some(missing)}): unpack the release again"
                )
        if not found["image"]:
            raise DataError(f"{place}/image holds no 0.npy, 1.npy, ...: unpack the release there")
        self._numbers, self._classes = sorted(found["image"]), classes
        self._shrink = shrink

    def __len__(self) -> int:
        return len(self._numbers)

    def digest(self) -> str:
        """Tells releases with other images apart: by their number, and by the first one."""
        first = self._folders["image"] / f"{self._numbers[0]}.npy"
        content = reading.read(first, lambda file: file.read(), _REMEDY)
        return hashlib.sha256(f"{len(self)}/".encode() + content).hexdigest()[:16]

    def read(self, rows: Tensor) -> Frames:
        """The images of ``rows``, [R] int64, on the CPU.

        Raises:
            DataError: A file is damaged, or holds something else; images differ in size.
        """
        numbers = [self._numbers[row] for row in rows.tolist()]
        frames = [self._one(number).shrunk(self._shrink) for number in numbers]
        for number, one in zip(numbers, frames, strict=True):
            found, other = list(one.label.shape[1:]), list(frames[0].label.shape[1:])
            if found != other:
                raise DataError(
                    f"{self._folders['image'] / f'{number}.npy'} is of size {found}, {numbers[0]}"
                    f".npy beside it of size {other}: give images of one size"
                )
        return Frames.cat(frames)

    def _one(self, number: int) -> Frames:
        arrays = {name: self._array(name, number) for name in self._folders}
        sizes = {array.shape[:2] for array in arrays.values()}
        if len(sizes) > 1:
            raise DataError(
                f"{self._folders['image'] / f'{number}.npy'} and the files beside it differ in "
                f"size ({some(sorted(sizes))}): fetch them again"
            )
        self._check(number, arrays)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        normal = tensors.get("normal")
        return Frames(
            tensors["image"].movedim(-1, 0)[None],
            tensors["label"][None].long(),
            tensors["depth"][None, ..., 0],
            None if normal is None else normal.movedim(-1, 0)[None],
        )

    def _array(self, name: str, number: int) -> NDArray[Any]:
        file = self._folders[name] / f"{number}.npy"
        array = reading.array(file, _REMEDY)
        channels = _CHANNELS[name]
        right = array.ndim == (3 if channels else 2) and array.size > 0
        if not right or (channels and array.shape[2] != channels):
            wanted = f"[height, width{f', {channels}' if channels else ''}]"
            raise DataError(f"{file} has shape {list(array.shape)}, not {wanted}: {_REMEDY}")
        if array.dtype.kind not in "biuf":
            raise DataError(f"{file} holds {array.dtype}, not real numbers: {_REMEDY}")
        with np.errstate(over="ignore"):  # as this computer has them, in whatever order of bytes
            array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise DataError(f"{file} holds NaN or infinity: {_REMEDY}")
        return array

    def _check(self, number: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Refuse values that mean something else here."""
        remedies = {
            "image": (
                lambda a: (a >= 0) & (a <= _BRIGHTEST),
                "images are from 0 to 1: divide them by 255",
            ),
            "label": (
                lambda a: (a == a.round()) & (a >= IGNORED) & (a < self._classes),
                f"labels are from −1 (none) to {self._classes - 1}: give the number of classes, or "
                "other files",
            ),
            "depth": (lambda a: a >= 0, "depths are 0 (not observed) or positive"),
        }
        for name, (right, remedy) in remedies.items():
            if not (good := right(arrays[name])).all():
                value = arrays[name][~good].flat[0]
                file = self._folders[name] / f"{number}.npy"
                raise DataError(f"{file} holds {value:g}; {remedy}")


def parts(
    data: str | None,
    classes: int,
    *,
    normals: bool,
    validation: int | None,
    seed: int,
    shrink: int = 1,
) -> tuple[Part, Part, Part]:
    """Training and validation images from ``train/``, by lot, and test images from ``val/``.

    Args:
        data: Folder of the release.
        classes: How many its labels tell apart.
        normals: Whether it has normals.
        validation: How many images; None for a tenth.
        seed: Decides which.
        shrink: As for :class:`Release`.

    Raises:
        DataError: There is no such folder, or something is missing in it.
        SettingsError: There are not so many images.
    """
    if data is None:
        raise DataError("give --data, the folder that holds train/ and val/ of the release")
    train, test = (
        Release(Path(data), part, classes, normals=normals, shrink=shrink)
        for part in ("train", "val")
    )
    total = len(train)
    held = max(1, total // 10) if validation is None else validation
    require(1 <= held < total, "validation", held, f"give 1 to {total - 1:,}")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return (train, order[held:]), (train, order[:held]), (test, torch.arange(len(test)))


def write(frames: Frames, folder: Path, part: str, *, start: int = 0) -> None:
    """Write images in the layout of a release.

    Args:
        frames: The images; no folder ``normal`` where they have no normals.
        folder: Is to hold ``train`` and ``val``.
        part: ``"train"`` or ``"val"``.
        start: Number of the first.

    Raises:
        OutputError: A file could not be written.
    """
    try:
        for number, (image, label, depth) in enumerate(zip(*frames[:3], strict=True), start):
            _save(folder / part / "image", number, image.movedim(0, -1))
            _save(folder / part / "label", number, label)
            _save(folder / part / "depth", number, depth[..., None])
            if frames.normal is not None:
                _save(
                    folder / part / "normal", number, frames.normal[number - start].movedim(0, -1)
                )
    except OSError as error:
        raise OutputError(
            f"{folder / part} cannot be written ({error.strerror or error})"
        ) from error


def _save(folder: Path, number: int, values: Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{number}.npy", values.float().contiguous().numpy())


def _numbers(folder: Path) -> set[int]:
    require_folder(folder, "0.npy, 1.npy, ... of a preprocessed release")
    return {int(file.stem) for file in folder.glob("*.npy") if file.stem.isdecimal()}
