"""Parts of a set of images, every pixel of which is a row of the targets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.benchmark import Batch, Split
from experiments.dense.frames import Frames, pixel_rows, seen_depth, seen_label, seen_normal
from experiments.errors import DataError
from experiments.files.ahead import ahead
from experiments.rows import places

Change = Callable[[Frames, torch.Generator], Frames]


class Source(Protocol):
    """A set of images."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, rows: Tensor) -> Frames:
        """The images of ``rows``, [R] int64, on the CPU."""

    def digest(self) -> str:
        """Tells sets of other images apart."""


Part = tuple[Source, Tensor]
"""Images, and the rows of them that belong to a part of the data."""


class InMemory:
    """Images that are all in memory."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames.label)

    def read(self, rows: Tensor) -> Frames:
        """The images of ``rows``, [R] int64."""
        return self._frames.rows(rows)

    def digest(self) -> str:
        """Of all the images."""
        return hashlib.sha256(self._frames.image.numpy().tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Statistics:
    """What the targets of some images suggest for the rest.

    Attributes:
        classes: [C], share of every class among the pixels with a label.
        depth_mean: Mean of the logarithm of the observed depths.
        depth_std: Its standard deviation.
        normal: [3], mean of the observed normals.
    """

    classes: Tensor
    depth_mean: float
    depth_std: float
    normal: Tensor

    @classmethod
    def of(cls, frames: Frames, classes: int) -> Statistics:
        """Of all pixels together.

        Raises:
            DataError: There is not one label or depth.
        """
        label, seen = frames.label[seen_label(frames)], seen_depth(frames)
        if not len(label) or not seen.any():
            raise DataError("the first training images have no label or no depth: look at them")
        log = frames.depth[seen].double().log()
        normal = torch.zeros(3)
        if frames.normal is not None:
            observed = seen_normal(frames)[:, None].double()
            normal = (
                (frames.normal * observed).sum((0, 2, 3)) / observed.sum().clamp(min=1)
            ).float()
        return cls(
            torch.bincount(label, minlength=classes).double() / len(label),
            float(log.mean()),
            float(log.std().clamp(min=1e-3)),
            normal,
        )


class DenseSplit(Split):
    """Images with targets ``{head: (values, mask)}`` of one row for each pixel.

    Rows run through the images of a batch one after the other, each from its top left to its bottom
    right. With a generator, the order is drawn first and then, batch by batch, the augmentation.
    Batches are read ahead by a thread.

    Args:
        source: All images.
        rows: The part's, [R] int64.
        heads: Which of ``"segmentation"``, ``"depth"`` and ``"normal"`` are wanted.
        statistics: The depth's logarithm is standardised by.
        device: Where batches are wanted.
        change: Augmentation, where a generator draws.
    """

    def __init__(
        self,
        source: Source,
        rows: Tensor,
        heads: Sequence[str],
        statistics: Statistics,
        device: torch.device,
        change: Change | None = None,
    ) -> None:
        self._source, self._rows, self._heads = source, rows, tuple(heads)
        self._statistics, self._device, self._change = statistics, device, change

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All images once, on the device."""
        for frames in self.frames(batch_size, generator):
            yield Batch(frames.image, self.targets(frames))

    def frames(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Frames]:
        """The images of :meth:`batches`."""
        chosen = [self._rows[batch] for batch in places(len(self), batch_size, generator)]
        for read in ahead(self._source.read, chosen):
            frames = read.to(self._device)
            if generator is not None and self._change is not None:
                frames = self._change(frames, generator)
            yield frames

    def targets(self, frames: Frames) -> dict[str, Any]:
        """``{head: (values, mask)}``, each [pixels, columns of the head]."""
        s = self._statistics
        made: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "segmentation": lambda: (frames.label.clamp(min=0), seen_label(frames)),
            "depth": lambda: (
                # 1 stands for what was not observed, of which the mask tells.
                (torch.where(frames.depth > 0, frames.depth, 1.0).log() - s.depth_mean)
                / s.depth_std,
                seen_depth(frames),
            ),
            "normal": lambda: (_normals(frames), seen_normal(frames)),
        }
        found = {}
        for head in self._heads:
            values, seen = made[head]()
            rows = pixel_rows(values)
            found[head] = rows, pixel_rows(seen).expand_as(rows)
        return found


def _normals(frames: Frames) -> Tensor:
    assert frames.normal is not None
    return frames.normal
