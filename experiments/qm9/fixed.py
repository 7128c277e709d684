"""Batches of few fixed shapes, so that a step can be captured once and replayed.

The molecules of a batch, sorted by size, are cut at fixed places into groups of fixed padding. The
k-th smallest of 120 random molecules is nearly the same size in every batch, so this costs little:
the padding is what a few hundred trial batches needed. A batch that needs more takes the shape in
which every molecule fits.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import Tensor

from experiments.errors import SettingsError
from experiments.qm9.batching import PaddedMolecules, cuts

Shape: TypeAlias = tuple[tuple[int, int], ...]
"""Groups as (molecules, atoms to pad to), from small molecules to large."""

_TRIALS: Final = 512


class FixedBatches:
    """Draws the batches of a pass: for each its shape, and its rows sorted by size.

    Attributes:
        batch_size: Molecules per batch; the last of a pass may be smaller.
        usual: The shape of almost all batches.
    """

    def __init__(
        self, data: PaddedMolecules, rows: Tensor, batch_size: int, *, groups: int = 4
    ) -> None:
        """Choose the shapes; the trial batches depend on nothing but the molecules.

        Args:
            data: Where the molecules are.
            rows: [R] int64 on the CPU, the rows of a split.
            batch_size: Molecules per batch.
            groups: At most so many groups.

        Raises:
            SettingsError: No rows, or a batch size below 1.
        """
        if len(rows) == 0 or batch_size < 1:
            raise SettingsError(
                f"{len(rows)} molecules cannot be cut into batches of {batch_size}; give at least "
                "one of each"
            )
        self._data, self._rows = data, rows
        self._sizes = data.sizes[rows]
        self._groups = groups
        self._most = int(self._sizes.max())
        self.batch_size = batch_size
        self._shapes: dict[int, tuple[Shape, Tensor]] = {}

    @property
    def usual(self) -> Shape:
        """The shape of almost all full batches."""
        return self._shape(min(self.batch_size, len(self._rows)))[0]

    def draw(self, generator: torch.Generator) -> list[tuple[Shape, Tensor]]:
        """One pass in random order: the shape and the rows [B] of every batch.

        Rows are sorted here and copied to the device in one piece.
        """
        order = torch.randperm(len(self._rows), generator=generator)
        pieces = order.split(self.batch_size)
        found: list[tuple[Shape, Tensor]] = []
        for full in (True, False):
            chosen = [piece for piece in pieces if (len(piece) == self.batch_size) is full]
            if chosen:
                found += self._sorted(torch.stack(chosen))
        return found

    def _sorted(self, positions: Tensor) -> list[tuple[Shape, Tensor]]:
        """Batches [N, B] of positions in the split."""
        sizes, order = self._sizes[positions].sort(stable=True, dim=1)
        rows = self._rows[positions.gather(1, order)].to(self._data.device)
        shape, limits = self._shape(positions.shape[1])
        fits = (sizes <= limits).all(1).tolist()
        whole: Shape = ((positions.shape[1], self._most),)
        return [(shape if fit else whole, batch) for fit, batch in zip(fits, rows, strict=True)]

    def _shape(self, batch: int) -> tuple[Shape, Tensor]:
        """The usual shape of ``batch`` molecules, and what may stand at each place [batch]."""
        if batch not in self._shapes:
            generator = torch.Generator().manual_seed(0)
            drawn = torch.randint(len(self._rows), (_TRIALS, batch), generator=generator)
            needed = self._sizes[drawn].sort(1).values.amax(0).tolist()
            needed[-1] = self._most
            shape: Shape = tuple(
                (end - begin, needed[end - 1]) for begin, end in cuts(needed, self._groups)
            )
            limits = torch.tensor([n for count, n in shape for _ in range(count)])
            self._shapes[batch] = (shape, limits)
        return self._shapes[batch]
