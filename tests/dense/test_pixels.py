"""Targets of pixels, augmentation and metrics."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.dense.benchmark import HEADS
from experiments.dense.frames import Frames, augmented, flipped, scaled_crop, seen_normal
from experiments.dense.metrics import DenseMeter, angles, measures
from experiments.dense.rooms import Camera, draw, render, with_gaps
from experiments.dense.split import DenseSplit, InMemory, Statistics
from experiments.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def frames() -> Frames:
    rooms = draw(5, seed=1)
    return with_gaps(render(rooms, Camera(24, 32)), rooms)


@pytest.fixture(scope="module")
def split(frames: Frames) -> DenseSplit:
    change = partial(augmented, inverse_depth=False)
    statistics = Statistics.of(frames, 5)
    return DenseSplit(InMemory(frames), torch.arange(5), HEADS, statistics, CPU, change)


def test_rows_are_pixels(frames: Frames, split: DenseSplit) -> None:
    batch = list(split.batches(2))[1]
    assert torch.equal(batch.inputs, frames.image[2:4])
    image, y, x = 1, 7, 21
    row = image * 24 * 32 + y * 32 + x
    labels, labelled = batch.targets["segmentation"]
    assert labels.dtype == torch.int64
    assert labelled[row] == (frames.label[3, y, x] >= 0)
    assert labels[row] == frames.label[3, y, x].clamp(min=0)
    normals, seen = batch.targets["normal"]
    assert frames.normal is not None
    assert torch.equal(normals[row], frames.normal[3, :, y, x])
    assert torch.equal(seen[row], (frames.depth[3, y, x] > 0).expand(3))
    for values, mask in batch.targets.values():
        assert len(values) == len(mask) == 2 * 24 * 32
        assert values.isfinite().all()
        assert not mask.all()
    assert [len(b.inputs) for b in split.batches(2)] == [2, 2, 1]
    assert split.steps(2) == 3


def test_depths_are_standardised_logarithms(frames: Frames, split: DenseSplit) -> None:
    (batch,) = split.batches(5)
    values, mask = batch.targets["depth"]
    assert values[mask].mean().abs() < 1e-5
    assert values[mask].std() == pytest.approx(1.0, abs=1e-5)
    statistics = Statistics.of(frames, 5)
    back = (statistics.depth_mean + statistics.depth_std * values[mask]).exp()
    torch.testing.assert_close(back, frames.depth[frames.depth > 0])
    assert statistics.classes.sum() == pytest.approx(1.0)


def test_a_pass_is_decided_by_its_generator(split: DenseSplit) -> None:
    def passed(seed: int) -> list[Tensor]:
        return [b.inputs for b in split.batches(2, torch.Generator().manual_seed(seed))]

    for one, again in zip(passed(0), passed(0), strict=True):
        assert torch.equal(one, again)
    assert not all(map(torch.equal, passed(0), passed(1)))


def test_a_crop_is_a_piece_of_all_targets(frames: Frames) -> None:
    found = scaled_crop(frames, 1.5, top=3, left=5, inverse_depth=False)
    # 16 × 21 pixels become 24 × 32; the nearest of the corners are the corners.
    for there, here in (((0, 0), (3, 5)), ((23, 31), (18, 25))):
        at, of = (..., *there), (..., *here)
        assert torch.equal(found.label[at], frames.label[of])
        assert torch.equal(found.depth[at], frames.depth[of] / 1.5)
        assert found.normal is not None
        assert frames.normal is not None
        assert torch.equal(found.normal[at], frames.normal[of])
        torch.testing.assert_close(found.image[at], frames.image[of])
    assert torch.equal(seen_normal(found), found.depth > 0)
    nearer = scaled_crop(frames, 1.5, top=3, left=5, inverse_depth=True)
    torch.testing.assert_close(nearer.depth, found.depth * 1.5**2)


def test_flipping_twice_changes_nothing(frames: Frames) -> None:
    once = flipped(frames)
    assert frames.normal is not None
    assert once.normal is not None
    assert torch.equal(once.normal[:, 0, :, 0], -frames.normal[:, 0, :, -1])
    assert torch.equal(once.normal[:, 1:, :, 0], frames.normal[:, 1:, :, -1])
    for found, expected in zip(flipped(once), frames, strict=True):
        assert torch.equal(found, expected)


def random_pixels(count: int) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    rng = torch.Generator().manual_seed(0)
    label = torch.randint(0, 4, (count, 1), generator=rng)
    logits = torch.randn(count, 6, generator=rng) + 1.5 * torch.nn.functional.one_hot(
        label[:, 0], 6
    )
    logits[:, 5] = -10.0  # a class that neither occurs nor is predicted
    normal = torch.nn.functional.normalize(torch.randn(count, 3, generator=rng), dim=1)
    depth = torch.randn(count, 1, generator=rng)
    masks = [torch.rand(count, 1, generator=rng) < 0.8 for _ in range(3)]
    predictions = {
        "segmentation": logits,
        "depth": depth + 0.3 * torch.randn(count, 1, generator=rng),
        "normal": 2 * normal + torch.randn(count, 3, generator=rng),
    }
    targets = {
        "segmentation": (label, masks[0]),
        "depth": (depth, masks[1]),
        "normal": (normal, masks[2].expand(-1, 3)),
    }
    return predictions, targets


def test_metrics_agree_with_others() -> None:
    """Over all pixels together, however they come in batches."""
    classification = pytest.importorskip("torchmetrics.functional.classification")
    predictions, targets = random_pixels(5000)
    meter = DenseMeter(HEADS, "abcdef", depth_mean=0.4, depth_std=0.5)
    for rows in torch.arange(5000).split([1, 3000, 1999]):
        meter.update(
            {name: value[rows] for name, value in predictions.items()},
            {name: (values[rows], mask[rows]) for name, (values, mask) in targets.items()},
        )
    found = dict(zip([task.name for task in measures(HEADS, "m")], meter.compute(), strict=True))

    label, seen = targets["segmentation"]
    truth = torch.where(seen, label, -1)[:, 0]
    guess = predictions["segmentation"].argmax(1)
    jaccard = partial(classification.multiclass_jaccard_index, guess, truth, 6, ignore_index=-1)
    assert found["miou"] == pytest.approx(100 * float(jaccard(average="macro")), rel=1e-5)
    every = jaccard(average="none")
    figures = meter.figures()
    assert figures["IoU c"] == pytest.approx(100 * float(every[2]), rel=1e-5)
    assert figures["IoU f"] is None
    right = classification.multiclass_accuracy(guess, truth, 6, average="micro", ignore_index=-1)
    assert found["pixel_accuracy"] == pytest.approx(100 * float(right), rel=1e-5)

    values, mask = targets["depth"]
    true, said = (
        np.exp(0.4 + 0.5 * x[mask].double().numpy()) for x in (values, predictions["depth"])
    )
    assert found["depth_absolute"] == pytest.approx(np.abs(said - true).mean(), rel=1e-9)
    assert found["depth_relative"] == pytest.approx((np.abs(said - true) / true).mean(), rel=1e-9)

    values, mask = targets["normal"]
    one, other = (x[mask[:, 0]].double().numpy() for x in (values, predictions["normal"]))
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    degrees = np.rad2deg(np.arccos(cosine))
    assert found["normal_mean"] == pytest.approx(degrees.mean(), rel=1e-6)
    assert found["normal_median"] == pytest.approx(np.median(degrees), abs=0.05)
    for limit in (11.25, 22.5, 30):
        expected = 100 * (degrees < limit).mean()
        assert found[f"normal_{int(limit)}"] == pytest.approx(expected, rel=1e-9)


def test_median_to_a_hundredth_of_a_degree() -> None:
    """Of 20,001 angles, whose median is one of them."""
    degrees = np.random.default_rng(0).uniform(0, 60, 20_001)
    radians = torch.tensor(np.deg2rad(degrees))
    normal = torch.stack([radians.sin(), torch.zeros(20_001), radians.cos()], 1)
    truth = torch.tensor([0.0, 0.0, 1.0]).expand(20_001, 3)
    meter = DenseMeter(["normal"], "ab", 0.0, 1.0)
    meter.update({"normal": normal}, {"normal": (truth, torch.ones(20_001, 3, dtype=torch.bool))})
    assert meter.compute()[1] == pytest.approx(np.median(degrees), abs=0.01)


def test_nothing_observed_and_nothing_finite() -> None:
    predictions, targets = random_pixels(50)
    nothing = {name: (values, torch.zeros_like(mask)) for name, (values, mask) in targets.items()}
    meter = DenseMeter(HEADS, "abcdef", 0.0, 1.0)
    with pytest.raises(DataError, match="empty split"):
        meter.compute()
    meter.update(predictions, nothing)
    assert meter.compute() == [None] * 9
    meter.update({name: value * torch.nan for name, value in predictions.items()}, targets)
    values = meter.compute()
    assert all(value is not None and np.isnan(value) for value in values[:6])


def test_small_angles_are_not_rounded() -> None:
    one = torch.tensor([[0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[1e-9, 0.0, 1.0], [-3.0, 0.0, 0.0], [1.0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(
        angles(one, other), torch.tensor([np.rad2deg(1e-9), 180.0, 90.0], dtype=torch.float64)
    )
