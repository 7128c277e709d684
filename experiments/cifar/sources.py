"""CIFAR-100 by super-class, CIFAR-10, or any folder of classes: images and a class for each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.files.cache import require_writable
from experiments.files.reading import unpickled
from experiments.images.decode import Form, decoded
from experiments.images.files import images_in, require_folder, some
from models.files import reason

Source = Literal["cifar100", "cifar10", "folder"]

SIZE: Final = 32

#: What torchvision unpacks, with the size of the download.
_UNPACKED: Final = {
    "cifar100": ("cifar-100-python", ("train", "test", "meta"), "169 MB"),
    "cifar10": (
        "cifar-10-batches-py",
        (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch", "batches.meta"),
        "170 MB",
    ),
}


@dataclass(frozen=True)
class LabelledImages:
    """Images, one class for each, official training images first.

    Attributes:
        pixels: [N, 3, size, size] uint8.
        labels: [N] int64.
        classes: Names of the classes, in the order of the labels.
        training: How many of the images, from the first, are official training images.
        others: Files beside a folder's images that are none, and so were passed over.
    """

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    training: int
    others: int = 0


def load(source: Source, data: Path | None, cache: Path, *, size: int = SIZE) -> LabelledImages:
    """Read a set.

    Args:
        source: ``"cifar100"`` and ``"cifar10"`` come through torchvision, which downloads them
            once; ``"folder"`` is ``data`` with ``train/<class>/`` and ``test/<class>/``.
        data: The folder; for torchvision the one in which it keeps its data sets.
        cache: Where torchvision's data sets (without ``data``) and decoded images are kept.
        size: Height and width that a folder's images are resized to.

    Raises:
        DataError: The set cannot be had or is damaged, or torchvision is missing.
    """
    root = cache if data is None else data
    return _folder(root, cache, size) if source == "folder" else _torchvision(source, root)


def look(source: Source, data: Path | None, cache: Path) -> str:
    """What of a set is there, in a line, without reading it.

    Raises:
        DataError: Files are missing; the message says what to do.
    """
    root = cache if data is None else data
    if source == "folder":
        classes = [_classes(root / part).values() for part in ("train", "test")]
        count = sum(len(files) for part in classes for files in part)
        return f"{count:,} images in {root}"
    folder, names, size = _UNPACKED[source]
    missing = [name for name in names if not (root / folder / name).is_file()]
    if missing:
        raise DataError(
            f"{root / folder} lacks {some(missing)}: the first run downloads {size} to {root}, or "
            f"unpack the archive that holds {folder} there"
        )
    return f"{source} in {root / folder}"


def _torchvision(source: Literal["cifar100", "cifar10"], root: Path) -> LabelledImages:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise DataError(
            f"{source} comes through torchvision, which is not installed: pip install torchvision"
        ) from error
    if (root / "train").is_dir():
        raise DataError(
            f"{root} has a folder train/, as a set of images of one's own: add --source folder, or "
            f"name the folder in which torchvision keeps {source}"
        )
    kind: Any = datasets.CIFAR100 if source == "cifar100" else datasets.CIFAR10
    require_writable(root)
    try:
        parts = [kind(str(root), train=train, download=True) for train in (True, False)]
    except Exception as error:  # pickles whose checksums fit, archives and the network
        raise DataError(
            f"{kind.__name__} is neither complete in {root} nor can it be downloaded "
            f"({reason(error)}): unpack {kind.url} there, or delete a damaged "
            f"{kind.base_folder} and try again"
        ) from error
    pixels = np.concatenate([part.data for part in parts]).transpose(0, 3, 1, 2)
    if source == "cifar10":
        labels = [label for part in parts for label in part.targets]
        classes = tuple(parts[0].classes)
    else:
        folder = root / kind.base_folder
        labels, classes = _super_classes(
            {folder / name: md5 for name, md5 in (*kind.train_list, *kind.test_list)},
            folder / kind.meta["filename"],
            kind.meta["md5"],
        )
    return LabelledImages(
        torch.from_numpy(np.ascontiguousarray(pixels)),
        torch.tensor(labels),
        classes,
        training=len(parts[0].data),
    )


def _super_classes(
    batches: Mapping[Path, str], names: Path, md5: str
) -> tuple[list[int], tuple[str, ...]]:
    """The coarse labels, which torchvision leaves aside, of files with these checksums.

    Raises:
        DataError: A file has none, or another checksum.
    """
    remedy = "delete it, and CIFAR-100 will be fetched again"
    labels: list[int] = []
    try:
        for file, checksum in batches.items():
            labels += unpickled(file, checksum, remedy)["coarse_labels"]
        classes = tuple(unpickled(names, md5, remedy)["coarse_label_names"])
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{names.parent} holds no super-classes ({type(error).__name__}: {error}): {remedy}"
        ) from error
    return labels, classes


def _folder(data: Path, cache: Path, size: int) -> LabelledImages:
    require_folder(data, "train/<class>/*.jpg and test/<class>/*.jpg")
    parts = {name: _classes(data / name) for name in ("train", "test")}
    others = sum(images_in(entry)[1] for name in parts for entry in _folders(data / name))
    classes = tuple(parts["train"])
    if tuple(parts["test"]) != classes:
        odd = sorted(set(classes) ^ set(parts["test"]))
        raise DataError(
            f"train and test in {data} must have the same classes; in one alone: {some(odd)}"
        )
    training = sum(map(len, parts["train"].values()))
    files, labels = [], []
    for part in parts.values():
        for label, of_class in enumerate(part.values()):
            files += of_class
            labels += [label] * len(of_class)
    pixels = decoded("folder", files, Form(size), cache)
    return LabelledImages(pixels, torch.tensor(labels), classes, training, others)


def class_names(data: Path) -> tuple[str, ...]:
    """The classes of a folder with ``train/<class>/``, sorted.

    Raises:
        DataError: It is not such a folder.
    """
    require_folder(data, "train/<class>/*.jpg and test/<class>/*.jpg")
    return tuple(entry.name for entry in _folders(data / "train"))


def digest(data: Path) -> str:
    """Of classes, names and sizes of a folder's images, wherever it lies.

    Raises:
        DataError: It is not such a folder.
    """
    found = hashlib.sha256()
    for part in ("train", "test"):
        for name, files in _classes(data / part).items():
            for file in files:
                told = f"{part}/{name}/{file.name}:{file.stat().st_size}\n"
                found.update(told.encode(errors="surrogateescape"))
    return found.hexdigest()[:16]


def _folders(folder: Path) -> list[Path]:
    require_folder(folder, "one folder for each class")
    entries = sorted(folder.iterdir())
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _classes(folder: Path) -> dict[str, list[Path]]:
    """Images by class, both sorted by name."""
    found = {entry.name: images_in(entry)[0] for entry in _folders(folder)}
    if len(found) < 2:
        raise DataError(
            f"{folder} holds {len(found)} folder(s), and at least 2 classes are needed: give the "
            "folder above train/<class>/*.jpg and test/<class>/*.jpg"
        )
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise DataError(
            f"in {folder} there are no .jpg, .jpeg or .png files for {some(empty)}: fill or delete "
            "those folders"
        )
    return found
