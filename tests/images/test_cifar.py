"""CIFAR from a folder and from torchvision's files, end to end."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision

from experiments import methods
from experiments.cifar.benchmark import ACCURACY, HEAD, Cifar, channel_statistics, split
from experiments.cifar.sources import LabelledImages
from experiments.errors import CheckpointError, DataError, SettingsError
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import RESULTS, Trainer
from tests.images.fixtures import cifar100, class_folder, truncate

CPU = torch.device("cpu")


def folder_benchmark(root: Path, **changes: Any) -> Cifar:
    return Cifar(**{"source": "folder", "data": str(root), "width": 8, "validation": 6} | changes)


def test_the_papers_settings() -> None:
    settings = Cifar.default_settings
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (50, 128, 1e-3)
    assert (settings.weight_decay, settings.schedule) == (1e-4, "steps")
    assert Cifar.grid == {"power": (5e-2, 5e-3, 5e-4), "pretrain": (1, 3)}
    assert len(Cifar().tasks) == 20
    assert len(Cifar(source="cifar10").tasks) == 10
    assert Cifar().backbone().out_features == Cifar().heads(True)[HEAD].in_features == 160


def test_folder_of_classes(tmp_path: Path) -> None:
    benchmark = folder_benchmark(class_folder(tmp_path / "set"))
    (tmp_path / "set" / "train" / "cat" / "notes.txt").touch()
    assert [task.name for task in benchmark.tasks] == ["cat", "dog", "frog"]
    data = benchmark.load(CPU)
    assert data.left_out == {"files that are no images": 1}
    assert data.about["images"] == benchmark.identity()["images"]
    assert (len(data.train), len(data.validation), len(data.test)) == (24, 6, 12)
    (batch,) = data.test.batches(100)
    assert batch.inputs.shape == (12, 3, 32, 32)
    assert torch.equal(batch.targets[HEAD], torch.eye(3).repeat_interleave(4, 0))
    # Each class has a bright channel of its own: images and targets belong together.
    for part in (data.train, data.validation, data.test):
        for inputs, targets in part.batches(5, torch.Generator().manual_seed(0)):
            std = torch.tensor(data.about["channel_std"])
            mean = torch.tensor(data.about["channel_mean"])
            bright = inputs.mean((2, 3)) * std + mean
            assert torch.equal(bright.argmax(1), targets[HEAD].argmax(1))
    train = torch.cat([b.inputs for b in data.train.batches(7)])
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        train.std((0, 2, 3), unbiased=False), torch.ones(3), rtol=0, atol=1e-3
    )


def test_training_reports_the_largest_logit(tmp_path: Path) -> None:
    benchmark = folder_benchmark(class_folder(tmp_path / "set"))
    settings = Settings(
        epochs=5, batch_size=8, learning_rate=1e-2, schedule="steps", head_bias=True, device="cpu"
    )
    run = Run(benchmark, "ls", methods.options("ls", {}), settings)
    record = Trainer(run, tmp_path / "out").train()
    assert record["best"]["test_figures"][ACCURACY] == 100.0  # a class is a colour
    assert record["best"]["test_score"] == 0.0
    assert record["best"]["test_delta_m"] is None  # the paper has no single-task row
    constant = record["constant"]
    assert constant["test"] == pytest.approx(dict.fromkeys(("cat", "dog", "frog"), 200 / 3))
    assert constant["test_figures"][ACCURACY] == pytest.approx(100 / 3)
    rates = [epoch["learning_rate"] for epoch in record["history"]]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 1e-3, 1e-4])
    stored = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert stored["score_name"] == "error"
    assert stored["data"]["sizes"] == {"train": 24, "validation": 6, "test": 12}


def test_another_set_of_images_is_another_run(tmp_path: Path) -> None:
    """Moving a folder changes nothing; what is in it decides."""
    first = folder_benchmark(class_folder(tmp_path / "set"))
    moved = folder_benchmark(class_folder(tmp_path / "elsewhere"))
    assert moved.identity() == first.identity()
    (tmp_path / "elsewhere" / "train" / "cat").rename(tmp_path / "elsewhere" / "train" / "lynx")
    (tmp_path / "elsewhere" / "test" / "cat").rename(tmp_path / "elsewhere" / "test" / "lynx")
    other = folder_benchmark(tmp_path / "elsewhere")
    assert other.identity() != first.identity()

    def run(benchmark: Cifar, epochs: int, **how: bool) -> Trainer:
        settings = Settings(epochs=epochs, batch_size=8, device="cpu")
        return Trainer(
            Run(benchmark, "ls", methods.options("ls", {}), settings), tmp_path / "out", **how
        )

    run(first, 1).train()
    with pytest.raises(CheckpointError, match="images: "):
        run(other, 2, resume=True)
    # What is there stays until the new run has all that it needs.
    kept = (tmp_path / "out" / RESULTS).read_bytes()
    with pytest.raises(SettingsError, match="training = 9999"):
        run(folder_benchmark(tmp_path / "set", training=9999), 1, overwrite=True).train()
    assert (tmp_path / "out" / RESULTS).read_bytes() == kept
    run(other, 1, overwrite=True).train()
    assert (tmp_path / "out" / RESULTS).read_bytes() != kept


def test_a_last_batch_of_one_image_joins_the_one_before(tmp_path: Path) -> None:
    """24 images in batches of 23: batch normalisation takes no single image."""
    benchmark = folder_benchmark(class_folder(tmp_path / "set"))
    train = benchmark.load(CPU).train
    assert [len(b.inputs) for b in train.batches(23, torch.Generator().manual_seed(0))] == [24]
    assert train.steps(23) == 1
    assert [len(b.inputs) for b in train.batches(9)] == [9, 9, 6]
    settings = Settings(epochs=1, batch_size=23, device="cpu")
    run = Run(benchmark, "ls", methods.options("ls", {}), settings)
    assert Trainer(run, tmp_path / "out").train()["history"]


def test_cifar100_by_super_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cifar100(tmp_path / "root", monkeypatch)
    names = tuple(f"super_{k:02}" for k in range(20))
    monkeypatch.setattr("experiments.cifar.benchmark._SUPER_CLASSES", names)
    data = Cifar(data=str(root), width=8, validation=10).load(CPU)
    assert (len(data.train), len(data.validation), len(data.test)) == (50, 10, 20)
    (batch,) = data.test.batches(100)
    with (root / "cifar-100-python" / "test").open("rb") as stream:
        stored = pickle.load(stream)
    assert batch.targets[HEAD].argmax(1).tolist() == stored["coarse_labels"]
    assert (batch.targets[HEAD].sum(1) == 1).all()
    mean, std = (torch.tensor(data.about[f"channel_{k}"])[:, None, None] for k in ("mean", "std"))
    bytes_ = ((batch.inputs * std + mean) * 255).round().to(torch.uint8)
    assert bytes_.flatten(1).tolist() == stored["data"].tolist()
    monkeypatch.undo()


def test_other_super_classes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cifar100(tmp_path / "root", monkeypatch)
    with pytest.raises(DataError, match=r"cifar100 has the classes super_00.*aquatic_mammals"):
        Cifar(data=str(root)).load(CPU)


@pytest.mark.parametrize("source", ["cifar10", "cifar100"])
def test_what_cannot_be_downloaded(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route")

    module = torchvision.datasets.cifar
    monkeypatch.setattr(module, "download_and_extract_archive", offline)
    with pytest.raises(DataError, match=r"neither complete in .* nor can it be downloaded .*no ro"):
        Cifar(source=source, data=str(tmp_path)).load(CPU)
    if source == "cifar100":
        root = cifar100(tmp_path / "root", monkeypatch)
        truncate(root / "cifar-100-python" / "train")  # its checksum no longer fits
        with pytest.raises(DataError, match="delete a damaged cifar-100-python"):
            Cifar(data=str(root)).load(CPU)


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "set", each=3)
    with pytest.raises(DataError, match=r"no folder .*absent.*train/<class>"):
        folder_benchmark(tmp_path / "absent").load(CPU)
    with pytest.raises(DataError, match=r"no folder .*train.*one folder for each class"):
        folder_benchmark(root / "train").load(CPU)
    with pytest.raises(SettingsError, match="source folder needs one"):
        Cifar(source="folder")
    with pytest.raises(SettingsError, match=r"source = 'mnist'.*cifar100, cifar10 or folder"):
        Cifar(source="mnist")  # type: ignore[arg-type]
    (root / "test" / "dog").rename(root / "test" / "wolf")
    with pytest.raises(DataError, match="same classes; in one alone: dog, wolf"):
        folder_benchmark(root).load(CPU)
    (root / "test" / "wolf").rename(root / "test" / "dog")
    for image in (root / "train" / "frog").iterdir():
        image.unlink()
    with pytest.raises(DataError, match=r"no \.jpg, \.jpeg or \.png files for frog"):
        folder_benchmark(root).load(CPU)
    (root / "train" / "frog").rmdir()
    (root / "train" / "dog").rename(root / "dog")
    with pytest.raises(DataError, match="holds 1 folder"):
        folder_benchmark(root).load(CPU)


def test_damaged_image_of_a_class(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "set", each=3)
    truncate(root / "train" / "dog" / "0001.jpg")
    with pytest.raises(DataError, match=r"1 of 21 images are damaged .*dog.0001\.jpg"):
        folder_benchmark(root).load(CPU)


def test_parts_of_the_official_training_images() -> None:
    found = LabelledImages(
        torch.zeros(60000, 3, 1, 1, dtype=torch.uint8), torch.zeros(60000), ("a",), 50000
    )
    parts = split(found, 0, None, None)
    assert parts.sizes() == {"train": 45000, "validation": 5000, "test": 10000}
    everything = torch.cat([parts.train, parts.validation])
    assert torch.equal(everything.sort().values, torch.arange(50000))
    assert torch.equal(parts.test, torch.arange(50000, 60000))
    assert not torch.equal(split(found, 1, None, None).validation, parts.validation)
    assert torch.equal(split(found, 0, 1000, None).train, parts.train[:1000])
    with pytest.raises(SettingsError, match=r"training = 45001.*1 to 45,000"):
        split(found, 0, 45001, None)
    with pytest.raises(SettingsError, match="validation = 50000"):
        split(found, 0, None, 50000)


def test_channel_statistics_are_those_of_the_training_images() -> None:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 3, 5, 5), generator=g).to(torch.uint8)
    rows = torch.arange(10, 40)
    mean, std = channel_statistics(pixels, rows)
    values = pixels[rows].double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(values.std((0, 2, 3), unbiased=False).tolist())
