"""Batches of molecules padded to a common size, assembled without a loop over molecules.

Every molecule lies padded in one block per kind of data, so a batch is a gather of rows and a
slice. A batch is drawn at random like any other, then sorted by size and cut into a few groups,
each padded to its own largest molecule. Everything happens on the device where the blocks are; only
row numbers and sizes are kept on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
