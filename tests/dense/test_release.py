"""Small files in the layouts of the public releases, and all that may be wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.dense.frames import Frames
from experiments.dense.public import Cityscapes, NyuV2
from experiments.dense.release import Release, parts, write
from experiments.dense.rooms import Camera, draw, render, with_gaps
from experiments.errors import DataError, SettingsError


@pytest.fixture(scope="module")
def frames() -> Frames:
    rooms = draw(6, seed=0)
    return with_gaps(render(rooms, Camera(12, 16)), rooms)


@pytest.fixture
def folder(frames: Frames, tmp_path: Path) -> Path:
    write(frames, tmp_path, "train")
    write(frames.rows(torch.arange(2)), tmp_path, "val")
    return tmp_path


def test_files_are_as_the_release_has_them(folder: Path, frames: Frames) -> None:
    shapes = {"image": (12, 16, 3), "label": (12, 16), "depth": (12, 16, 1), "normal": (12, 16, 3)}
    for name, shape in shapes.items():
        array = np.load(folder / "train" / name / "5.npy")
        assert array.shape == shape
        assert array.dtype == np.float32
    np.testing.assert_array_equal(
        np.load(folder / "val/normal/1.npy")[3, 7],
        frames.normal[1, :, 3, 7],  # type: ignore[index]
    )


def test_what_is_written_is_read(folder: Path, frames: Frames) -> None:
    release = Release(folder, "train", 13, normals=True)
    assert len(release) == 6
    rows = torch.tensor([4, 0, 5])
    for found, expected in zip(release.read(rows), frames.rows(rows), strict=True):
        assert torch.equal(found, expected)
    without = Release(folder, "train", 7, normals=False).read(rows)
    assert without.normal is None


def test_images_are_made_smaller(folder: Path, frames: Frames) -> None:
    """A pixel has the mean of its block's colours, and the targets of the block's middle."""
    (source, rows), _, _ = NyuV2(data=str(folder), shrink=5).parts()
    found, whole = source.read(rows), frames.rows(rows)
    assert found.image.shape[-2:] == found.label.shape[-2:] == (2, 3)
    torch.testing.assert_close(found.image[..., 1, 2], whole.image[..., 5:10, 10:15].mean((-1, -2)))
    assert torch.equal(found.label[..., 1, 2], whole.label[..., 7, 12])
    assert torch.equal(found.depth[..., 0, 1], whole.depth[..., 2, 7])
    assert found.normal is not None
    assert torch.equal(found.normal[..., 0, 1], whole.normal[..., 2, 7])  # type: ignore[index]
    with pytest.raises(SettingsError, match="shrink = 0"):
        Cityscapes(shrink=0)
    with pytest.raises(SettingsError, match=r"shrink = 8 .* take at most 6"):
        NyuV2(data=str(folder), shrink=8).load(torch.device("cpu"))


def test_numbers_are_read_in_their_order(frames: Frames, tmp_path: Path) -> None:
    """And not in that of their names, in which 10 comes before 9."""
    write(frames, tmp_path, "train", start=8)
    found = Release(tmp_path, "train", 5, normals=True).read(torch.tensor([1, 2]))
    assert torch.equal(found.depth, frames.depth[1:3])


def test_labels_of_other_classes_lie_beside(folder: Path) -> None:
    place = folder / "train" / "label_19"
    place.mkdir()
    for number in range(6):
        np.save(place / f"{number}.npy", np.full((12, 16), 18.0))
    assert (Release(folder, "train", 19, normals=False).read(torch.tensor([2])).label == 18).all()
    assert (Release(folder, "train", 7, normals=False).read(torch.tensor([2])).label < 5).all()


def test_parts(folder: Path) -> None:
    train, validation, test = parts(str(folder), 5, normals=True, validation=2, seed=0)
    assert (len(train[1]), len(validation[1]), len(test[1])) == (4, 2, 2)
    assert {*train[1].tolist(), *validation[1].tolist()} == set(range(6))
    assert len(test[0]) == 2
    other = parts(str(folder), 5, normals=True, validation=2, seed=1)
    assert other[1][1].tolist() != validation[1].tolist()
    assert len(parts(str(folder), 5, normals=True, validation=None, seed=0)[1][1]) == 1
    with pytest.raises(SettingsError, match=r"validation = 6 .*1 to 5"):
        parts(str(folder), 5, normals=True, validation=6, seed=0)


def test_missing_folders_and_files(folder: Path) -> None:
    with pytest.raises(DataError, match="give --data"):
        parts(None, 5, normals=True, validation=None, seed=0)
    with pytest.raises(DataError, match="nowhere"):
        parts(str(folder / "nowhere"), 5, normals=True, validation=None, seed=0)
    (folder / "train/depth/3.npy").unlink()
    with pytest.raises(DataError, match=r"depth do not hold the same numbers.*3"):
        Release(folder, "train", 5, normals=True)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("image", np.full((12, 16, 3), 255.0), "holds 255; images are from 0 to 1"),
        ("image", np.zeros((3, 12, 16)), r"shape \[3, 12, 16\], not \[height, width, 3\]"),
        ("label", np.full((12, 16), 5.0), "holds 5; labels are from −1"),
        ("label", np.full((12, 16), 0.5), r"holds 0\.5; labels"),
        ("depth", np.full((12, 16, 1), -1.0), "holds -1; depths"),
        ("depth", np.full((12, 16, 1), np.nan), "NaN"),
        ("depth", np.ones((6, 16, 1)), "differ in size"),
        ("normal", np.array([{}], dtype=object), "damaged"),
        ("depth", np.ones((0, 16, 1)), r"shape \[0, 16, 1\]"),
        ("image", np.zeros((12, 16, 3), "U3"), "holds <U3, not real numbers"),
        ("image", np.zeros((12, 16, 3), "c8"), "holds complex64, not real numbers"),
        ("normal", np.full((12, 16, 3), 1e300), "NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, name: str, values: Any, message: str) -> None:
    file = folder / "train" / name / "3.npy"
    np.save(file, values)
    release = Release(folder, "train", 5, normals=True)
    release.read(torch.tensor([2]))
    with pytest.raises(DataError, match=message) as error:
        release.read(torch.tensor([3]))
    assert "3.npy" in str(error.value)
    file.write_bytes(b"not an array")
    with pytest.raises(DataError, match="damaged"):
        release.read(torch.tensor([3]))


def test_numbers_of_another_computer(folder: Path) -> None:
    release, rows = Release(folder, "train", 13, normals=True), torch.arange(6)
    before = release.read(rows)
    for file in folder.glob("train/*/2.npy"):
        array = np.load(file)
        np.save(file, array.astype(array.dtype.newbyteorder(">")))
    assert all(map(torch.equal, release.read(rows), before))


def test_images_of_several_sizes(folder: Path) -> None:
    for file in folder.glob("train/*/2.npy"):
        np.save(file, np.load(file)[:6])
    release = Release(folder, "train", 13, normals=True)
    assert release.read(torch.tensor([2])).image.shape == (1, 3, 6, 16)
    with pytest.raises(DataError, match=r"2\.npy is of size \[6, 16\], 1\.npy .*one size"):
        release.read(torch.tensor([1, 2]))
