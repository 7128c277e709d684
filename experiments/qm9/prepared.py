"""The QM9 benchmark's data, ready for training: split, standardised, laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from experiments.benchmark import Batch, Split
from experiments.errors import SettingsError
from experiments.qm9.batching import FixedBatches, PaddedMolecules, Shape
from experiments.qm9.dataset import QM9
from experiments.qm9.splits import Standardiser, split
from experiments.rows import Parts

HEAD: Final = "properties"


class MoleculeRows(Split):
    """A part of the set, as the trainer wants it, and in batches of few fixed shapes.

    Within a batch molecules are sorted by size, and targets with them.

    Args:
        molecules: Of all parts, targets standardised.
        rows: [R] int64 on the CPU, the part's.
        groups: A batch is cut into at most so many groups of molecules of similar size.
    """

    def __init__(self, molecules: PaddedMolecules, rows: Tensor, groups: int = 4) -> None:
        self.molecules, self.rows, self._groups = molecules, rows, groups
        self._fixed: FixedBatches | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> dict[str, Tensor]:
        """Standardised, [R, 11]."""
        return {HEAD: self.molecules.targets[self.rows.to(self.molecules.device)]}

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All molecules once; without a generator small ones first, which are padded least."""
        if generator is None:
            order = self.molecules.sizes[self.rows].argsort(stable=True)
        else:
            order = torch.randperm(len(self), generator=generator)
        for rows in self.rows[order].split(batch_size):
            graphs, targets, _ = self.molecules.batch(rows, self._groups)
            yield Batch(graphs, {HEAD: targets})

    def fixed_batches(
        self, batch_size: int, generator: torch.Generator
    ) -> Sequence[tuple[Shape, Tensor]]:
        """A pass in batches of fixed shapes, in the same order as :meth:`batches`."""
        if self._fixed is None or self._fixed.batch_size != batch_size:
            self._fixed = FixedBatches(self.molecules, self.rows, batch_size, groups=self._groups)
        return self._fixed.draw(generator)

    def gather(self, shape: Shape, rows: Tensor) -> Batch:
        """The batch of these rows, assembled on the device."""
        graphs, targets = self.molecules.gather(rows, shape)
        return Batch(graphs, {HEAD: targets})


@dataclass(frozen=True)
class Prepared:
    """What a run needs.

    Attributes:
        split: Rows of the set in each part, counted after ``max_atoms``.
        scale: How targets were standardised.
    """

    train: MoleculeRows
    validation: MoleculeRows
    test: MoleculeRows
    split: Parts
    scale: Standardiser


def prepare(
    data: QM9,
    *,
    seed: int,
    molecules: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    max_atoms: int | None = None,
    peer_normalisation: bool = False,
    groups: int = 4,
    device: torch.device | str = "cpu",
) -> Prepared:
    """Split, standardise and lay out the data.

    Args:
        data: From ``load``.
        seed: Of the split; the caller's global random state is not touched.
        molecules: Training molecules to use; None for all 110,831. See ``splits.split`` for the
            sizes of the others.
        validation: Validation molecules to use.
        test: Test molecules to use.
        max_atoms: Leave out molecules with more atoms before the split, for studies at a smaller
            scale; the three parts shrink in proportion.
        peer_normalisation: Take mean and standard deviation over the whole set, test molecules
            included, as published code does; by default they come from the training molecules in
            use.
        groups: Of a batch, as for :class:`MoleculeRows`.
        device: Where to keep the molecules.

    Raises:
        SettingsError: Sizes that cannot be had.
        DataError: A target that does not vary.
    """
    whole = data.molecules
    if max_atoms is not None:
        few = np.flatnonzero(whole.n_atoms <= max_atoms)
        if len(few) < 4:
            raise SettingsError(
                f"max_atoms = {max_atoms} leaves {len(few)} of {len(whole)} molecules, too few for "
                f"three parts; the smallest has {int(whole.n_atoms.min())} atoms: give more"
            )
        whole = whole.select(few)
    generator = torch.Generator().manual_seed(seed)
    chosen = split(
        len(whole), generator=generator, molecules=molecules, validation=validation, test=test
    )
    targets = torch.from_numpy(whole.targets)
    scale = Standardiser.fit(targets if peer_normalisation else targets[chosen.train])
    rows = torch.cat([chosen.train, chosen.validation, chosen.test])
    padded = PaddedMolecules(whole.select(rows.numpy()), scale.transform(targets[rows]), device)
    places = torch.arange(len(rows)).split([*chosen.sizes().values()])
    train, held, tested = (MoleculeRows(padded, own, groups) for own in places)
    return Prepared(train, held, tested, chosen, scale)
