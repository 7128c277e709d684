"""UTKFace's file names and images, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import methods
from experiments.errors import DataError
from experiments.run import Run
from experiments.scores.delta_m import delta_m
from experiments.settings import Settings
from experiments.training import Trainer
from experiments.utkface import benchmark as module
from experiments.utkface.benchmark import UtkFace, parse, prepare, read
from tests.images.fixtures import MALFORMED, picture, save, truncate, utk_folder

CPU = torch.device("cpu")


def make(root: Path, **changes: Any) -> UtkFace:
    return UtkFace(**{"data": str(root)} | changes)


def test_the_papers_settings() -> None:
    settings = UtkFace.default_settings
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (100, 128, 1e-3)
    assert (settings.weight_decay, settings.schedule) == (1e-4, "steps")
    assert UtkFace.method_options["bayesagg"]["pretrain"] == 10
    assert len(UtkFace.grid["power"]) == 9
    # The published row of LS gives the published delta-m.
    values = (0.146, 92.92, 83.98)
    assert UtkFace().score(values, {}) == pytest.approx(0.69, abs=0.25)
    assert UtkFace().score(values, {}) == delta_m(
        values, (0.140, 92.32, 82.42), (False, True, True)
    )


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("25_1_0_20170116174525125.jpg", (25, 1, 0)),
        ("25_1_0_20170116174525125.jpg.chip.jpg", (25, 1, 0)),
        ("1_0_4_20161219140525218.jpg", (1, 0, 4)),
        ("116_1_3_20170112213257263.jpg.chip.jpg", (116, 1, 3)),
        ("24_0_1_20170116220224657 .jpg.chip.jpg", (24, 0, 1)),  # a blank, as released
        *((name, None) for name in MALFORMED),
        ("_1_0_20170116174525125.jpg", None),
        ("53__0_20170116184028385.jpg", None),
        ("25_1_0_.jpg", None),
        ("-25_1_0_20170116174525125.jpg", None),
        ("25_1_0_0_20170116174525125.jpg", None),
        ("117_1_0_20170116174525125.jpg", None),
    ],
)
def test_names(name: str, labels: tuple[int, int, int] | None) -> None:
    assert parse(name) == labels


def test_malformed_names_are_skipped_counted_and_listed(tmp_path: Path) -> None:
    faces = read(utk_folder(tmp_path))
    assert len(faces.files) == 60
    assert faces.skipped == tuple(sorted(MALFORMED))
    assert faces.others == 1
    for file, age, gender, race in zip(
        faces.files, faces.ages, faces.genders, faces.ethnicities, strict=True
    ):
        assert file.name.startswith(f"{age}_{gender}_{race}_")


def test_end_to_end(tmp_path: Path) -> None:
    benchmark = make(utk_folder(tmp_path / "faces"), size=32, width=16)
    data = benchmark.load(CPU)
    told = data.contents(benchmark.losses)
    assert told["examples"] == {"train": 42, "validation": 6, "test": 12}
    assert [*told["left_out"].values()] == [5, 1]
    assert data.about["skipped_names"] == sorted(MALFORMED)
    targets = torch.cat([b.targets["age"] for b in data.train.batches(50)])
    assert targets.mean().abs() < 1e-5
    assert targets.std() == pytest.approx(1.0, abs=1e-5)
    for part in (data.train, data.validation, data.test):
        batch = next(iter(part.batches(100)))
        assert batch.inputs.shape == (len(part), 3, 32, 32)
        assert batch.targets["ethnicity"].dtype == torch.int64
        # Red is 25 times the age up to 10, green is 200 for women: images and labels fit.
        pixels = batch.inputs * torch.tensor(module.IMAGENET_STD)[:, None, None] * 255
        pixels = pixels + torch.tensor(module.IMAGENET_MEAN)[:, None, None] * 255
        ages = batch.targets["age"][:, 0] * data.about["age_std"] + data.about["age_mean"]
        red = pixels[:, 0].mean((1, 2)) / 25
        assert (red - ages.clamp(max=10)).abs().max() < 0.5
        assert torch.equal(pixels[:, 1].mean((1, 2)) > 100, batch.targets["gender"][:, 0] > 0.5)
    settings = Settings(epochs=2, batch_size=16, head_bias=True, device="cpu", schedule="steps")
    run = Run(benchmark, "ls", methods.options("ls", {}), settings)
    record = Trainer(run, tmp_path / "out").train()
    assert list(record["best"]["test"]) == ["age", "gender", "ethnicity"]
    constant = record["constant"]["validation"]
    ages = torch.cat([b.targets["age"] for b in data.validation.batches(50)])
    assert constant["age"] == pytest.approx(ages.square().mean().item(), rel=1e-5)


def test_rare_ages_are_spread_and_none_is_lost(tmp_path: Path) -> None:
    data = make(utk_folder(tmp_path)).load(CPU)
    ages = [
        torch.cat([b.targets["age"][:, 0] for b in part.batches(50)])
        for part in (data.train, data.validation, data.test)
    ]
    years = torch.cat(ages) * data.about["age_std"] + data.about["age_mean"]
    assert torch.equal(years.round().long().sort().values, read(tmp_path).ages.sort().values)
    # The last block of ten, sorted by age, holds the four old ones: seven of it are for training.
    assert (years[:42].round() >= 90).sum() >= 1


def test_augmentation_of_faces() -> None:
    images = torch.randint(0, 256, (64, 3, 140, 140), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    plain = prepare(images, None)
    assert plain.shape == (64, 3, 128, 128)
    assert torch.equal(plain, prepare(images, None))
    middle = images[:, :, 6:134, 6:134].float() / 255
    std = torch.tensor(module.IMAGENET_STD)[:, None, None]
    mean = torch.tensor(module.IMAGENET_MEAN)[:, None, None]
    torch.testing.assert_close(plain, (middle - mean) / std)
    random = prepare(images, torch.Generator().manual_seed(1))
    assert torch.equal(random, prepare(images, torch.Generator().manual_seed(1)))
    same = (random == plain).flatten(1).all(1)
    assert same.sum() <= 2


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*absent"):
        read(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images: give the folder"):
        read(tmp_path / "empty")
    utk_folder(tmp_path / "outer" / "UTKFace", count=20)
    with pytest.raises(DataError, match=r"holds no images.*There are images in UTKFace inside"):
        read(tmp_path / "outer")
    save(tmp_path / "other" / "holiday.jpg", picture(0, 8))
    with pytest.raises(DataError, match=r"1 images, and none is named .*'holiday\.jpg'"):
        read(tmp_path / "other")
    few = utk_folder(tmp_path / "few", count=3, malformed=())
    with pytest.raises(DataError, match="too few for three parts"):
        make(few).load(CPU)


def test_damaged_face(tmp_path: Path) -> None:
    root = utk_folder(tmp_path, count=20)
    face = read(root).files[7]
    truncate(face)
    with pytest.raises(DataError, match=r"1 of 20 images are damaged") as caught:
        make(root).load(CPU)
    assert face.name in str(caught.value)
