"""What a trained network says of every pixel, and how sure it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

import bayesagg_pyro as ba
from experiments.benchmark import Data
from experiments.dense.frames import Frames, seen_depth, seen_label, seen_normal
from experiments.dense.metrics import angles
from experiments.dense.split import DenseSplit
from experiments.errors import SettingsError
from experiments.methods import BayesAggMethod, Method, Network
from experiments.methods.branches import Features

_ROWS_AT_ONCE: Final = 8192
_PIXELS: Final = 2000  # of an image, for `Trust`


@dataclass(frozen=True)
class Predicted:
    """A target as it is, as it is predicted, and with what uncertainty; B images.

    Attributes:
        head: ``"segmentation"``, ``"depth"`` or ``"normal"``.
        truth: [B, H, W], or [B, 3, H, W] for normals.
        value: Likewise, the prediction.
        seen: [B, H, W], where the truth is known.
        error: [B, H, W]: 1 for a wrong class; metres (or their inverse); degrees.
        expected: [B, H, W], the error to expect: the probability of a wrong class, half the width
            of the interval that holds 68 % of the depth, the root mean square of the angle.
        shown: [B, H, W], what a figure shows of it: the entropy of the class in nats, else
            ``expected``.
    """

    head: str
    truth: Tensor
    value: Tensor
    seen: Tensor
    error: Tensor
    expected: Tensor
    shown: Tensor


@dataclass(frozen=True)
class Trust:
    """Errors beside those that were to be expected, [N] each, of pixels from all over a split."""

    error: Tensor
    expected: Tensor


def engine_of(method: Method, data: Data) -> ba.BayesAgg:
    """The engine whose posteriors predict; for a method without any they are made of its weights.

    Raises:
        SettingsError: It trains several networks.
    """
    if isinstance(method, BayesAggMethod):
        return method.mtl
    if not isinstance(method, Network) or isinstance(method.backbone, torch.nn.ModuleList):
        raise SettingsError(f"method {method.name} has no posterior for its features: give another")
    engine = ba.BayesAgg(method.by_name)
    engine.refit((method.backbone(batch.inputs), batch.targets) for batch in data.train.batches(8))
    return engine


@torch.no_grad()
def predicted(
    method: Method, data: Data, chosen: Collection[int]
) -> tuple[dict[int, tuple[Frames, list[Predicted]]], dict[str, Trust]]:
    """Some images of the test split, and how far uncertainties can be trusted on all of it.

    Args:
        method: Trained, in evaluation mode.
        data: Of a dense benchmark.
        chosen: Places of images in the test split.

    Raises:
        SettingsError: There are not so many images, or the method has no posterior.
    """
    count = len(data.test)
    if outside := [place for place in chosen if not 0 <= place < count]:
        raise SettingsError(f"image = {outside[0]} cannot work: give 0 to {count - 1:,}")
    engine = engine_of(method, data)
    assert isinstance(data.test, DenseSplit)
    shown: dict[int, tuple[Frames, list[Predicted]]] = {}
    pixels: dict[str, list[tuple[Tensor, Tensor]]] = {}
    generator = torch.Generator().manual_seed(0)
    for place, frames in enumerate(data.test.frames(1)):
        found = list(_of_image(method, engine, data, frames))
        if place in chosen:
            shown[place] = frames, found
        for one in found:
            seen = one.seen.flatten().nonzero()[:, 0].cpu()
            some = seen[torch.randperm(len(seen), generator=generator)[:_PIXELS]]
            error, expected = one.error.flatten().cpu()[some], one.expected.flatten().cpu()[some]
            pixels.setdefault(one.head, []).append((error, expected))
    trust = {
        head: Trust(*map(torch.cat, zip(*parts, strict=True))) for head, parts in pixels.items()
    }
    return shown, trust


def _of_image(
    method: Method, engine: ba.BayesAgg, data: Data, frames: Frames
) -> Iterator[Predicted]:
    features = method.backbone(frames.image)
    parts = [_moments(engine.predictive(rows)) for rows in _pieces(features)]
    size = frames.label.shape
    for head in parts[0]:
        first, second = (torch.cat(part) for part in zip(*(p[head] for p in parts), strict=True))
        one, other = first.view(*size, -1), second.view(*size, -1)
        if head == "segmentation":
            yield _segmentation(frames, one)
        elif head == "depth":
            yield _depth(data.about, frames, one, other)
        else:
            yield _normal(frames, one, other)


def _pieces(features: Features) -> Iterator[Any]:
    """So many rows at a time."""
    if isinstance(features, Tensor):
        yield from features.split(_ROWS_AT_ONCE)
    else:
        split = [own.split(_ROWS_AT_ONCE) for own in features.values()]
        for several in zip(*split, strict=True):
            yield dict(zip(features, several, strict=True))


def _moments(predictives: dict[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
    """Probabilities twice, or mean and variance, of each head: [N, columns] each."""
    return {
        head: (p.probs.flatten(1), p.probs.flatten(1))
        if hasattr(p, "probs")
        else (p.mean, p.variance)
        for head, p in predictives.items()
    }


def _segmentation(frames: Frames, probability: Tensor) -> Predicted:
    largest, value = probability.max(-1)
    entropy = -torch.special.xlogy(probability, probability).sum(-1)
    wrong = (value != frames.label).double()
    return Predicted(
        "segmentation", frames.label, value, seen_label(frames), wrong, 1 - largest, entropy
    )


def _depth(about: Mapping[str, Any], frames: Frames, mean: Tensor, variance: Tensor) -> Predicted:
    center, scale = about["depth_log_mean"], about["depth_log_std"]
    value = (center + scale * mean[..., 0]).exp()
    half = value * (scale * variance[..., 0].sqrt()).sinh()
    error = (value - frames.depth).abs()
    return Predicted("depth", frames.depth, value, seen_depth(frames), error, half, half)


def _normal(frames: Frames, mean: Tensor, variance: Tensor) -> Predicted:
    assert frames.normal is not None
    length = mean.norm(dim=-1, keepdim=True)
    value = mean / length
    # What moves the tip of the vector across itself, over its length, is an angle.
    across = (variance * (1 - value.square())).sum(-1).sqrt() / length[..., 0]
    angle = torch.rad2deg(torch.atan(across))
    error = angles(value.flatten(0, 2), frames.normal.movedim(1, -1).flatten(0, 2).double())
    return Predicted(
        "normal",
        frames.normal,
        value.movedim(-1, 1),
        seen_normal(frames),
        error.view(frames.label.shape),
        angle,
        angle,
    )
