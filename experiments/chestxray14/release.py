"""The NIH release as it lies on disk: a table, two official lists, and folders of images.

Data_Entry_2017*.csv     one row per image: name, findings joined by "|", patient, ...
train_val_list.txt       names of the images for training and validation
test_list.txt            names of the test images
images/*.png             or images_001/images/*.png to images_012/images/*.png, as unpacked
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.images.files import require_folder, some
from experiments.rows import Parts

FINDINGS: Final = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema"),
    *("Fibrosis", "Hernia", "Infiltration", "Mass", "Nodule", "Pleural_Thickening"),
    *("Pneumonia", "Pneumothorax"),
)
"""In alphabetical order, as published tables have them."""

VALIDATION_SHARE: Final = 0.1
"""Of all images of both lists."""

Overlap = Literal["error", "drop"]

_LISTS: Final = ("train_val_list.txt", "test_list.txt")
_NONE: Final = "No Finding"
_COLUMNS: Final = ("Image Index", "Finding Labels", "Patient ID")


@dataclass(frozen=True)
class Release:
    """The images of both lists, those for training and validation first.

    Attributes:
        files: N images.
        findings: [N, 14] float32, 0 or 1.
        patients: [N] int64, numbers of the patients.
        training: How many of the images, from the first, are on the list for training.
        dropped: Training images left out because their patient is on the test list, too.
    """

    files: tuple[Path, ...]
    findings: Tensor
    patients: Tensor
    training: int
    dropped: int


def read(folder: Path, overlap: Overlap = "error") -> Release:
    """Read table and lists, and find every image.

    Args:
        folder: Where the release is.
        overlap: What to do when a patient is on both lists (nobody is in the official ones): refuse
            the lists, or ``"drop"`` the training images of those patients.

    Raises:
        DataError: Something is missing, damaged or contradicts itself.
    """
    require_folder(
        folder, f"the NIH release: Data_Entry_2017*.csv, {', '.join(_LISTS)} and images/"
    )
    table = _table(folder)
    training, test = (_names(folder / name) for name in _LISTS)
    both = sorted(set(training) & set(test))
    if both:
        raise DataError(
            f"{len(both):,} images are on both {' and '.join(_LISTS)} ({some(both)}): fetch the "
            "official lists again"
        )
    unknown = [name for name in (*training, *test) if name not in table]
    if unknown:
        raise DataError(
            f"{len(unknown):,} listed images are not in the table ({some(unknown)}): take table "
            "and lists from the same release"
        )
    shared = {table[name][0] for name in training} & {table[name][0] for name in test}
    if shared and overlap == "error":
        raise DataError(
            f"{len(shared):,} patients are on both lists ({some(sorted(shared))}), so the test "
            "would not be fair: fetch the official lists again, or leave the training images of "
            "those patients out with --overlap drop"
        )
    kept = [name for name in training if table[name][0] not in shared]
    if not kept:
        raise DataError("no training image is left without the patients of the test list")
    names = [*kept, *test]
    places = _places(folder)
    missing = [name for name in names if name not in places]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(names):,} listed images are not in {folder} "
            f"({some(missing)}): unpack images_001.tar.gz to images_012.tar.gz there, into images/ "
            "or images_001/ to images_012/"
        )
    return Release(
        files=tuple(places[name] for name in names),
        findings=torch.tensor([table[name][1] for name in names]),
        patients=torch.tensor([table[name][0] for name in names]),
        training=len(kept),
        dropped=len(training) - len(kept),
    )


def parts(release: Release, seed: int, share: float = VALIDATION_SHARE) -> Parts:
    """Test images of the official list; validation patients drawn from the other list.

    Patients are drawn until they have ``share`` of all images, so no patient is in two parts.

    Raises:
        DataError: There are too few patients for two parts.
    """
    total, count = len(release.files), release.training
    patients = release.patients[:count]
    each, inverse = patients.unique(return_inverse=True)
    order = torch.randperm(len(each), generator=torch.Generator().manual_seed(seed))
    images = torch.bincount(inverse)[order].cumsum(0)
    drawn = int((images < share * total).sum()) + 1
    held = torch.isin(inverse, order[:drawn])
    validation, train = held.nonzero()[:, 0], (~held).nonzero()[:, 0]
    if len(train) == 0:
        raise DataError(
            f"{len(each)} training patients are too few to set some aside for validation: give a "
            "longer list"
        )
    return Parts(train, validation, torch.arange(count, total))


def _table(folder: Path) -> dict[str, tuple[int, list[float]]]:
    """Patient and findings of every image by name."""
    found = sorted(folder.glob("Data_Entry_2017*.csv"))
    if not found:
        raise DataError(
            f"there is no Data_Entry_2017*.csv in {folder}: copy it there from the NIH release"
        )
    file = found[0]
    table: dict[str, tuple[int, list[float]]] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            absent = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if absent:
                raise DataError(
                    f"{file} has no column {some(absent)}: fetch it from the NIH release again"
                )
            for row in rows:
                patient = int(row["Patient ID"])
                if not 0 <= patient < 2**63:
                    raise ValueError(f"patient {patient}")
                name, labels = row["Image Index"], (patient, _findings(row["Finding Labels"]))
                if table.setdefault(name, labels) != labels:
                    raise ValueError(f"{name} is there twice, with other labels")
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(
            f"{file} cannot be read (row {len(table) + 2}: {error}): fetch it from the NIH release "
            "again"
        ) from error
    return table


def _findings(text: str) -> list[float]:
    found = set(text.split("|")) - {_NONE}
    unknown = sorted(found - set(FINDINGS))
    if unknown:
        raise ValueError(f"unknown finding {unknown[0]!r}")
    return [float(name in found) for name in FINDINGS]


def _names(file: Path) -> list[str]:
    """The names of a list, without repetitions."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(
            f"there is no {file.name} in {file.parent}: copy it there from the NIH release"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}): fetch it again") from error
    names = list(dict.fromkeys(text.split()))
    if not names:
        raise DataError(f"{file} is empty: fetch it from the NIH release again")
    return names


def _places(folder: Path) -> dict[str, Path]:
    """Every image of the release by name."""
    places: dict[str, Path] = {}
    for place in _image_folders(folder):
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.endswith(".png"):
                    places.setdefault(entry.name, Path(entry.path))
    if not places:
        raise DataError(
            f"there are no images in {folder}/images or {folder}/images_*/images: unpack "
            "images_001.tar.gz to images_012.tar.gz there"
        )
    return places


def _image_folders(folder: Path) -> Iterable[Path]:
    for place in sorted(folder.glob("images*")):
        if place.is_dir():
            yield place
            if (place / "images").is_dir():
                yield place / "images"
