"""Augmentation per image from a generator, and the batches that it is applied to."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import Tensor

from experiments.errors import DataError, SettingsError
from experiments.files.ahead import ahead as ahead_of_use
from experiments.images import augment
from experiments.images.split import Images, ImageSplit, subset

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(count: int, size: int, channels: int = 3) -> Tensor:
    """Bytes that say where they are: row, column and image."""
    rows = torch.arange(size)[:, None].expand(size, size)
    return (
        torch.stack([rows, rows.mT, torch.zeros_like(rows)][:channels])
        .expand(count, channels, size, size)
        .to(torch.uint8)
        .clone()
    )


def test_crops_are_pieces_and_every_place_is_equally_likely() -> None:
    images = numbered(6000, 6)
    images[:, 2] = (torch.arange(6000) % 251)[:, None, None]
    pieces = augment.random_crop(images, 4, seeded())
    tops, lefts = pieces[:, 0, 0, 0].long(), pieces[:, 1, 0, 0].long()
    span = torch.arange(4)
    assert torch.equal(pieces[:, 0].long(), (tops[:, None] + span)[:, :, None].expand(-1, 4, 4))
    assert torch.equal(pieces[:, 1].long(), (lefts[:, None] + span)[:, None, :].expand(-1, 4, 4))
    assert torch.equal(pieces[:, 2], images[:, 2, :4, :4])
    counts = torch.bincount(3 * tops + lefts, minlength=9).double()
    expected = 6000 / 9
    assert ((counts - expected).square() / expected).sum() < 26.1  # chi-square, 8 degrees, 0.1 %
    with pytest.raises(SettingsError, match="6×6"):
        augment.random_crop(images, 7, seeded())


def test_center_crop() -> None:
    middle = augment.center_crop(numbered(1, 140), 128)
    assert middle.shape == (1, 3, 128, 128)
    assert middle[0, 0, 0, 0] == 6
    assert middle[0, 1, 0, 0] == 6


def test_flips_half_of_the_images() -> None:
    images = numbered(2000, 4)
    flipped = augment.flip(images, seeded())
    changed = (flipped != images).flatten(1).any(1)
    assert torch.equal(flipped[changed], images[changed].flip(-1))
    assert 880 < changed.sum() < 1120


def test_normalise() -> None:
    images = torch.randint(0, 256, (2, 3, 4, 4), generator=seeded()).to(torch.uint8)
    values = augment.normalise(images, augment.IMAGENET_MEAN, augment.IMAGENET_STD)
    assert values[1, 2, 3, 0] == pytest.approx((images[1, 2, 3, 0] / 255 - 0.406) / 0.225)
    grey = augment.normalise(images[:, :1], augment.IMAGENET_MEAN, augment.IMAGENET_STD)
    assert grey.shape == (2, 3, 4, 4)
    assert grey[0, 0, 1, 1] == pytest.approx((images[0, 0, 1, 1] / 255 - 0.485) / 0.229)


@pytest.mark.parametrize("channels", [1, 3])
def test_colour_jitter(channels: int) -> None:
    images = torch.rand(500, channels, 8, 8, generator=seeded(1)) * 0.4 + 0.2
    torch.testing.assert_close(augment.colour_jitter(images, 0.0, seeded()), images)
    changed = augment.colour_jitter(images, 0.4, seeded())
    assert changed.min() >= 0
    assert changed.max() <= 1
    # The mean brightness is what brightness alone changes (contrast keeps the mean).
    weights = torch.tensor((0.299, 0.587, 0.114) if channels == 3 else (1.0,))
    mean = (images * weights[:, None, None]).sum(1).mean((1, 2))
    factor = (changed * weights[:, None, None]).sum(1).mean((1, 2)) / mean
    assert 0.59 < factor.min() < 0.65
    assert 1.35 < factor.max() < 1.41
    assert factor.std() == pytest.approx(0.8 / math.sqrt(12), rel=0.1)
    if channels == 1:  # contrast is then all that changes the spread
        spread = (changed.std((2, 3)) / images.std((2, 3)))[:, 0] / factor
        assert 0.59 < spread.min() < 0.65
        assert 1.3 < spread.max() < 1.41
    else:  # saturation: how far channels are from grey
        grey = (changed * weights[:, None, None]).sum(1, keepdim=True)
        before = (images * weights[:, None, None]).sum(1, keepdim=True)
        away = (changed - grey).std((1, 2, 3)) / (images - before).std((1, 2, 3)) / factor
        assert 0.3 < away.min() < 0.65
        assert 1.35 < away.max() < 2.0


def test_grey_stays_grey_under_a_jitter_of_colours() -> None:
    """Why X-rays are kept in one channel: jitter of the three equal ones gives the same."""
    grey = torch.rand(20, 1, 8, 8, generator=seeded(2))
    one = augment.colour_jitter(grey, 0.4, seeded(3))
    three = augment.colour_jitter(grey.expand(-1, 3, -1, -1), 0.4, seeded(3))
    torch.testing.assert_close(three, one.expand(-1, 3, -1, -1), rtol=0, atol=1e-5)


def test_random_erase() -> None:
    images = torch.full((4000, 1, 24, 24), 100.0)
    changed = augment.random_erase(images, 0.25, seeded())
    inside = changed != 100.0
    erased = inside.flatten(1).any(1)
    assert 900 < erased.sum() < 1100
    rectangles = inside[erased, 0]
    heights, widths = rectangles.any(2).sum(1), rectangles.any(1).sum(1)
    areas = rectangles.flatten(1).sum(1)
    assert torch.equal(areas, heights * widths)  # rectangles, wholly filled
    share = areas / 24**2
    assert share.min() > 0.01
    assert share.max() < 0.37
    assert share.mean() == pytest.approx((0.02 + 1 / 3) / 2, rel=0.1)
    noise = changed[inside]
    assert noise.mean().abs() < 0.02
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert (images == 100.0).all()  # the input is left alone
    assert torch.equal(augment.random_erase(images, 0.0, seeded()), images)


def test_the_generator_decides_everything() -> None:
    images = torch.rand(16, 3, 12, 12, generator=seeded(4))

    def all_of_them(seed: int) -> Tensor:
        g = seeded(seed)
        x = augment.flip(augment.random_crop(images, 10, g), g)
        return augment.random_erase(augment.colour_jitter(x, 0.4, g), 0.5, g)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = all_of_them(7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(first, all_of_them(7))
    assert not torch.equal(first, all_of_them(8))


def jittering(images: Tensor, generator: torch.Generator | None) -> Tensor:
    values = images.float()
    return values if generator is None else augment.flip(values, generator)


def make(count: int = 23) -> ImageSplit:
    pixels = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).clone()
    targets = {"value": torch.arange(100.0)[:, None], "half": torch.arange(100)[:, None] // 2}
    rows = torch.arange(100)[50 : 50 + count]
    return ImageSplit(Images(pixels, CPU), targets, rows, jittering)


def test_every_image_once_with_its_own_targets() -> None:
    split = make()
    assert len(split) == 23
    assert split.steps(5) == 5
    for generator in (None, seeded()):
        batches = list(split.batches(5, generator))
        assert [len(b.inputs) for b in batches] == [5, 5, 5, 5, 3]
        seen = torch.cat([b.inputs[:, 0, 0, 0] for b in batches])
        assert torch.equal(torch.cat([b.targets["value"][:, 0] for b in batches]), seen)
        assert torch.equal(torch.cat([b.targets["half"][:, 0] for b in batches]), seen.long() // 2)
        assert torch.equal(seen.sort().values, torch.arange(50.0, 73.0))
        assert torch.equal(seen, torch.arange(50.0, 73.0)) == (generator is None)


def test_an_epoch_can_be_repeated() -> None:
    first, second = ([b.inputs for b in make().batches(4, seeded(5))] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_batches_made_ahead_are_the_same() -> None:
    pixels = torch.randint(0, 256, (40, 3, 4, 4), generator=seeded()).to(torch.uint8)
    images = Images(pixels, CPU)
    chosen = torch.randperm(40, generator=seeded(1)).split(7)
    direct, ahead = list(images.batches(chosen)), list(ahead_of_use(images.batch, chosen, 3))
    assert all(torch.equal(a, b) for a, b in zip(direct, ahead, strict=True))
    with pytest.raises(IndexError):
        list(ahead_of_use(images.batch, [torch.tensor([1]), torch.tensor([40])]))
    threads = threading.active_count()
    batches = ahead_of_use(images.batch, [torch.tensor([k]) for k in range(30)], 3)
    next(batches)
    assert threading.active_count() == threads + 1
    batches.close()  # as when training is interrupted
    assert threading.active_count() == threads


def test_images_must_be_bytes() -> None:
    with pytest.raises(DataError, match="bytes, got"):
        Images(torch.rand(2, 3, 4, 4), CPU)
    with pytest.raises(SettingsError, match="training = 9 cannot work: give 1 to 5"):
        subset(torch.arange(5), 9, "training")
