"""The QM9 benchmark's data, ready for training: split, standardised, laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from experiments.errors import SettingsError
from experiments.qm9.batching import Batches, PaddedMolecules
from experiments.qm9.dataset import QM9
from experiments.qm9.splits import Standardiser, split
from experiments.rows import Parts

__all__ = ["Part", "Prepared", "prepare"]

Part = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Prepared:
    """What a run needs.

    Attributes:
        molecules: Padded molecules of all three parts, targets standardised.
        split: Rows of the set in each part, counted after ``max_atoms``.
        parts: Rows of ``molecules`` in each part.
        scale: How targets were standardised.
    """

    molecules: PaddedMolecules
    split: Parts
    parts: Parts
    scale: Standardiser

    def rows(self, part: Part) -> Tensor:
        """Rows of ``molecules`` in ``part``, int64."""
        rows: Tensor = getattr(self.parts, part)
        return rows

    def targets(self, part: Part) -> Tensor:
        """Standardised targets [R, 11] of ``part``."""
        return self.molecules.targets[self.rows(part).to(self.molecules.device)]

    def batches(
        self,
        part: Part,
        batch_size: int = 120,
        *,
        generator: torch.Generator | None = None,
        groups: int = 4,
        drop_last: bool = False,
    ) -> Batches:
        """Batches of one part, shuffled by ``generator``, or else from small to large molecules.

        Raises:
            SettingsError: A setting that cannot work.
        """
        rows = self.rows(part)
        if generator is None:
            # Nothing depends on the order here, and neighbours of equal size need almost no
            # padding.
            rows = rows[self.molecules.sizes[rows].argsort(stable=True)]
        return Batches(
            self.molecules,
            rows,
            batch_size,
            shuffle=generator is not None,
            generator=generator,
            groups=groups,
            drop_last=drop_last,
        )


def prepare(
    data: QM9,
    *,
    seed: int,
    molecules: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    max_atoms: int | None = None,
    peer_normalisation: bool = False,
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
    lengths = [len(chosen.train), len(chosen.validation), len(chosen.test)]
    padded = PaddedMolecules(whole.select(rows.numpy()), scale.transform(targets[rows]), device)
    return Prepared(padded, chosen, Parts(*torch.arange(len(rows)).split(lengths)), scale)
