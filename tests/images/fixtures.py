"""Generated images in the formats in which the real sets lie on disk."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def picture(seed: int, size: int, grey: bool = False) -> Pixels:
    """A smooth picture that JPEG keeps almost as it is."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    channels = [
        128
        + 60 * np.sin(6 * x * random.random() + random.random())
        + 60 * np.cos(6 * y * random.random() + random.random())
        for _ in range(1 if grey else 3)
    ]
    pixels = np.stack(channels, -1).clip(0, 255).astype(np.uint8)
    return pixels[..., 0] if grey else pixels


def save(path: Path, pixels: Pixels) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def class_folder(
    root: Path, classes: tuple[str, ...] = ("cat", "dog", "frog"), each: int = 10
) -> Path:
    """``train/<class>/`` with ``each`` images, ``test/<class>/`` with 4; a class has a colour."""
    for part, count in (("train", each), ("test", 4)):
        for number, name in enumerate(classes):
            for index in range(count):
                pixels = picture(1000 * number + index, 32)
                pixels[..., number % 3] = 240
                save(root / part / name / f"{index:04}.jpg", pixels)
    return root


def cifar100(root: Path, patch: pytest.MonkeyPatch, train: int = 60, test: int = 20) -> Path:
    """The folder ``cifar-100-python``, whose checksums torchvision is made to expect."""
    from torchvision.datasets import CIFAR100

    folder = root / CIFAR100.base_folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    coarse = [f"super_{k:02}" for k in range(20)]
    contents = {
        "meta": {
            "coarse_label_names": coarse,
            "fine_label_names": [f"fine_{k:02}" for k in range(100)],
        }
    }
    for name, count in (("train", train), ("test", test)):
        fine = random.integers(0, 100, count)
        contents[name] = {
            "data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
            "fine_labels": fine.tolist(),
            "coarse_labels": ((7 * fine) % 20).tolist(),
            "filenames": [f"{k}.png" for k in range(count)],
        }
    sums = {}
    for name, content in contents.items():
        data = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(data)
        sums[name] = hashlib.md5(data).hexdigest()
    patch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    patch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    patch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
    return root


CSV_HEAD = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],\n"
)


def chest_name(patient: int, visit: int) -> str:
    return f"{patient:08}_{visit:03}.png"


def chest_release(root: Path, patients: int = 24, test: int = 6, size: int = 64) -> Path:
    """The NIH release: two images per patient, patients 1 ... ``patients``, the last ones for test.

    Images are spread over ``images_001/images``, ``images_002`` and ``images``. Every finding but
    Hernia occurs, on odd patients; Mass occurs on every second of them, together with Nodule.
    """
    from experiments.chestxray14.release import FINDINGS

    rows, lists = [CSV_HEAD], {"train_val_list.txt": [], "test_list.txt": []}
    places = ("images_001/images", "images_002", "images")
    for patient in range(1, patients + 1):
        for visit in range(2):
            name = chest_name(patient, visit)
            if patient % 2 == 0:
                labels = "No Finding"
            elif patient % 4 == 1:
                labels = "Mass|Nodule"
            else:
                labels = "|".join(f for f in FINDINGS if f not in ("Hernia", "Mass", "Nodule"))
            rows.append(f"{name},{labels},{visit},{patient},058,M,PA,2682,2749,0.143,0.143,\n")
            which = "test_list.txt" if patient > patients - test else "train_val_list.txt"
            lists[which].append(name)
            pixels = picture(10 * patient + visit, size, grey=True) // 2
            pixels = pixels + np.uint8(100 if patient % 2 else 0)
            save(root / places[patient % 3] / name, pixels)
    (root / "Data_Entry_2017_v2020.csv").write_text("".join(rows))
    for name, entries in lists.items():
        (root / name).write_text("\n".join(entries) + "\n")
    return root


MALFORMED = (
    "39_1_20170116174525125.jpg.chip.jpg",  # no race
    "61_3_1_20170109142408075.jpg",  # no such gender
    "7_0_5_20170109150557335.jpg",  # no such race
    "200_0_1_20170109150557335.jpg",  # no such age
    "portrait.png",
)


def utk_folder(root: Path, count: int = 60, malformed: tuple[str, ...] = MALFORMED) -> Path:
    """UTKFace's names, ages 1 to 9 often and a few old ones, and some malformed names."""
    random = np.random.default_rng(0)
    for index in range(count):
        age = 90 + index if index < 4 else int(random.integers(1, 10))
        gender, race = index % 2, index % 5
        end = ".jpg.chip.jpg" if index % 3 else ".jpg"
        pixels = picture(index, 48)
        pixels[..., 0] = 25 * min(age, 10)
        pixels[..., 1] = 200 * gender
        save(root / f"{age}_{gender}_{race}_2017010917{index:07}{end}", pixels)
    for name in malformed:
        save(root / name, picture(1, 48))
    (root / "readme.txt").write_text("not an image")
    return root
