"""Labels from the file names of UTKFace: ``[age]_[gender]_[race]_[date&time].jpg``.

The released names end in ``.jpg`` or ``.jpg.chip.jpg``. A few lack a label; such files are left out
and listed, and no label is ever guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from experiments.errors import DataError
from experiments.images.files import images_in, require_folder, some

ETHNICITIES: Final = ("white", "black", "asian", "indian", "other")
"""In the order of the released codes 0 to 4."""

OLDEST: Final = 116
"""Largest age of the data set."""

# Everything before the first dot. One released name has a blank there; its labels are in order.
_NAME: Final = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+ ?")


@dataclass(frozen=True)
class Faces:
    """The labelled files of a folder.

    Attributes:
        files: N files.
        ages: [N] int64, in years.
        genders: [N] int64, 0 male and 1 female.
        ethnicities: [N] int64, an index of :data:`ETHNICITIES`.
        skipped: Names of image files without all labels.
        others: Number of files that are no images.
    """

    files: tuple[Path, ...]
    ages: Tensor
    genders: Tensor
    ethnicities: Tensor
    skipped: tuple[str, ...]
    others: int


def parse(name: str) -> tuple[int, int, int] | None:
    """Age, gender and ethnicity, or None for a name that does not say all three."""
    match = _NAME.fullmatch(name.split(".")[0])
    if match is None:
        return None
    age, gender, ethnicity = map(int, match.groups())
    return (age, gender, ethnicity) if age <= OLDEST else None


def read(folder: Path) -> Faces:
    """All labelled images directly in ``folder``.

    Raises:
        DataError: It is no folder, holds no images, or none with a name of UTKFace.
    """
    what = "UTKFace's images (25_1_0_20170116174525125.jpg.chip.jpg, ...)"
    require_folder(folder, what)
    images, others = images_in(folder)
    if not images:
        inner = [f.name for f in sorted(folder.iterdir()) if f.is_dir() and images_in(f)[0]]
        hint = f" There are images in {some(inner)} inside it." if inner else ""
        raise DataError(f"{folder} holds no images: give the folder that holds {what}.{hint}")
    files, labels, skipped = [], [], []
    for file in images:
        label = parse(file.name)
        if label is None:
            skipped.append(file.name)
        else:
            files.append(file)
            labels.append(label)
    if not files:
        raise DataError(
            f"{folder} holds {len(images):,} images, and none is named [age]_[gender]_[race]_"
            f"[date&time].jpg ({some([*map(repr, skipped)])}): give the folder that holds {what}"
        )
    ages, genders, ethnicities = torch.tensor(labels).unbind(1)
    return Faces(tuple(files), ages, genders, ethnicities, tuple(skipped), others)
