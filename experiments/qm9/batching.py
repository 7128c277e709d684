"""Batches of molecules padded to a common size, assembled without a loop over molecules.

Every molecule lies padded in one block per kind of data, so a batch is a gather of rows and a
slice. A batch is drawn at random like any other, then sorted by size and cut into a few groups,
each padded to its own largest molecule. Everything happens on the device where the blocks are; only
row numbers and sizes are kept on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.errors import SettingsError
from experiments.qm9.molecules import Molecules
from models.graphs import PaddedGraphs

Groups = list[PaddedGraphs]

# Bond code (0 none, 1 single, 2 double, 3 triple, 4 aromatic) -> edge features; the last column is
# for the distance.
_EDGE_TABLE: Final = torch.cat([torch.zeros(1, 5), torch.eye(4, 5)])


class PaddedMolecules:
    """N molecules, each padded to the atom count M of the largest; about 1.5 kB per molecule.

    Attributes:
        sizes: [N] int64 on the CPU, atoms per molecule.
        targets: [N, T] float32 on the device.
    """

    def __init__(
        self, molecules: Molecules, targets: Tensor, device: torch.device | str = "cpu"
    ) -> None:
        """Lay out ``molecules``.

        Args:
            molecules: The set.
            targets: [N, T], already on the scale of training.
            device: Where to keep everything.

        Raises:
            SettingsError: ``targets`` has another number of rows than there are molecules.
        """
        count = len(molecules)
        if targets.ndim != 2 or len(targets) != count:
            raise SettingsError(f"targets must be [{count}, T], got {list(targets.shape)}")
        n_atoms = molecules.n_atoms.astype(np.int64)
        n_bonds = molecules.n_bonds.astype(np.int64)
        most = int(n_atoms.max())
        atom_row = np.repeat(np.arange(count), n_atoms)
        atom = np.arange(len(molecules.z)) - np.repeat(np.cumsum(n_atoms) - n_atoms, n_atoms)
        x = np.zeros((count, most, 11), np.uint8)
        x[atom_row, atom] = molecules.x
        pos = np.zeros((count, most, 3), np.float32)
        pos[atom_row, atom] = molecules.pos
        bonds = np.zeros((count, most, most), np.uint8)
        bond_row = np.repeat(np.arange(count), n_bonds)
        code = molecules.bond_order + np.uint8(1)
        bonds[bond_row, molecules.bond_i, molecules.bond_j] = code
        bonds[bond_row, molecules.bond_j, molecules.bond_i] = code

        self.sizes = torch.from_numpy(n_atoms)
        self.targets = targets.to(device, torch.float32)
        self._x = torch.from_numpy(x).to(device)
        self._pos = torch.from_numpy(pos).to(device)
        self._bonds = torch.from_numpy(bonds).to(device)
        self._sizes = self.sizes.to(device)
        self._edge_table = _EDGE_TABLE.to(device)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        """Where the batches are made."""
        return self._x.device

    def batch(self, rows: Tensor, groups: int = 4) -> tuple[Groups, Tensor, Tensor]:
        """Assemble one batch.

        Args:
            rows: [B] int64 on the CPU, rows in any order.
            groups: At most so many groups.

        Returns:
            The groups, from small molecules to large; targets [B, T]; and the rows [B] in the order
            of the two.
        """
        sizes, order = self.sizes[rows].sort(stable=True)
        rows = rows[order]
        there = rows.to(self.device, non_blocking=True)
        result = []
        for begin, end in cuts(sizes.tolist(), groups):
            result.append(self._group(there[begin:end], int(sizes[end - 1])))
        return result, self.targets.index_select(0, there), rows

    def gather(self, rows: Tensor, shape: Sequence[tuple[int, int]]) -> tuple[Groups, Tensor]:
        """Assemble one batch of a given shape; nothing is looked at on the host.

        Args:
            rows: [B] int64 on the device, from small molecules to large.
            shape: Groups as (molecules, atoms to pad to); the molecules add up to B and fit.

        Returns:
            The groups and the targets [B, T], in the order of ``rows``.
        """
        parts = rows.split([count for count, _ in shape])
        groups = [self._group(part, n) for part, (_, n) in zip(parts, shape, strict=True)]
        return groups, self.targets.index_select(0, rows)

    def _group(self, rows: Tensor, n: int) -> PaddedGraphs:
        atoms = self._sizes.index_select(0, rows)
        pos = self._pos.index_select(0, rows)[:, :n]
        bonds = self._bonds.index_select(0, rows)[:, :n, :n]
        edges = functional.embedding(bonds.int(), self._edge_table)
        real = (torch.arange(n, device=rows.device) < atoms[:, None]).float()
        # Differences, not a matrix product: that would cost digits at bonding distances.
        distance = torch.cdist(pos, pos, compute_mode="donot_use_mm_for_euclid_dist")
        edges[..., 4] = distance.mul_(real[:, :, None]).mul_(real[:, None])
        return PaddedGraphs(
            nodes=self._x.index_select(0, rows)[:, :n].float(), edges=edges, atoms=atoms
        )


def cuts(sizes: Sequence[int], groups: int) -> list[tuple[int, int]]:
    """Cut ascending ``sizes`` into at most ``groups`` runs with the fewest padded pairs.

    Runs only end where the size changes, so with at most 29 sizes the exact answer takes a few
    thousand steps.
    """
    ends = [k for k in range(1, len(sizes)) if sizes[k] != sizes[k - 1]] + [len(sizes)]
    largest = [sizes[end - 1] ** 2 for end in ends]
    best: list[tuple[int, list[int]]] = [
        (end * pairs, [end]) for end, pairs in zip(ends, largest, strict=True)
    ]
    for _ in range(min(groups, len(ends)) - 1):
        best = [
            min(
                [best[k]]
                + [
                    (best[j][0] + (ends[k] - ends[j]) * largest[k], [*best[j][1], ends[k]])
                    for j in range(k)
                ]
            )
            for k in range(len(ends))
        ]
    chosen = best[-1][1]
    return list(zip([0, *chosen[:-1]], chosen, strict=True))


Shape: TypeAlias = tuple[tuple[int, int], ...]
"""Groups as (molecules, atoms to pad to), from small molecules to large."""

_TRIALS: Final = 512


class FixedBatches:
    """Draws the batches of a pass: for each its shape, and its rows sorted by size.

    Shapes are few, so that a step can be captured once and replayed: molecules, sorted by size, are
    cut at fixed places into groups of fixed padding. The k-th smallest of 120 random molecules is
    nearly the same size in every batch, so this costs little: the padding is what a few hundred
    trial batches needed. A batch that needs more takes the shape in which every molecule fits.

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
