"""Molecules as complete graphs, padded to a common number of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.errors import GraphError


@dataclass(frozen=True)
class PaddedGraphs:
    """A group of B molecules padded to n atoms each.

    What stands in the padding and on the diagonal of ``edges`` is ignored by every network (NaN
    included), so whoever fills the tensors need not clear it.

    Attributes:
        nodes: [B, n, p] floating point, features of the atoms (QM9: p = 11).
        edges: [B, n, n, q] of the same dtype; ``edges[b, i, j]`` describes the pair as atom i sees
            atom j, that is the message from j to i (QM9: q = 5, four bond types one-hot and the
            distance in Ångström).
        atoms: [B] int64, the number of real atoms, which come first.

    Raises:
        GraphError: Shapes, dtypes or devices that do not fit together; an atom count outside
            1 ... n (looked at on the CPU only: elsewhere it would cost a synchronisation).
    """

    nodes: Tensor
    edges: Tensor
    atoms: Tensor

    def __post_init__(self) -> None:
        nodes, edges, atoms = self.nodes, self.edges, self.atoms
        if nodes.ndim != 3 or 0 in nodes.shape:
            raise GraphError(
                f"nodes must be [B, n, p] and not empty, got {list(nodes.shape)}; "
                "use models.graphs.pad for a list of molecules"
            )
        batch, size, _ = nodes.shape
        if edges.ndim != 4 or tuple(edges.shape[:3]) != (batch, size, size) or not edges.shape[3]:
            raise GraphError(
                f"edges must be [{batch}, {size}, {size}, q] to go with nodes "
                f"{list(nodes.shape)}, got {list(edges.shape)}"
            )
        if tuple(atoms.shape) != (batch,):
            raise GraphError(
                f"atoms must be [{batch}], one count a molecule, got {list(atoms.shape)}"
            )
        if not nodes.is_floating_point() or edges.dtype != nodes.dtype:
            raise GraphError(
                f"nodes and edges must share a floating-point dtype, got {nodes.dtype} and "
                f"{edges.dtype}; convert one of them"
            )
        if atoms.dtype != torch.int64:
            raise GraphError(f"atoms must be int64, got {atoms.dtype}; use atoms.long()")
        if not nodes.device == edges.device == atoms.device:
            raise GraphError(
                f"nodes, edges and atoms lie on {nodes.device}, {edges.device} and {atoms.device}; "
                "move them to one device"
            )
        if atoms.device.type == "cpu" and bool(((atoms < 1) | (atoms > size)).any()):
            wrong = int(((atoms < 1) | (atoms > size)).nonzero()[0])
            raise GraphError(
                f"atoms[{wrong}] is {int(atoms[wrong])}, but must lie in 1 ... {size}, the number "
                "of rows in nodes"
            )

    def __len__(self) -> int:
        return self.nodes.shape[0]

    @property
    def size(self) -> int:
        """Number n of atoms that every molecule is padded to."""
        return self.nodes.shape[1]

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
    ) -> PaddedGraphs:
        """Move to ``device``, and convert nodes and edges to ``dtype``."""
        return PaddedGraphs(
            nodes=self.nodes.to(device, dtype, non_blocking=non_blocking),
            edges=self.edges.to(device, dtype, non_blocking=non_blocking),
            atoms=self.atoms.to(device, non_blocking=non_blocking),
        )

    def real(self) -> Tensor:
        """[B, n] bool: which rows are atoms, not padding."""
        return torch.arange(self.size, device=self.atoms.device) < self.atoms[:, None]

    def pairs(self) -> Tensor:
        """[B, n, n] bool: which edges join two different atoms."""
        real = self.real()
        diagonal = torch.eye(self.size, dtype=torch.bool, device=real.device)
        return real[:, :, None] & real[:, None, :] & ~diagonal


def as_groups(graphs: PaddedGraphs | Sequence[PaddedGraphs]) -> list[PaddedGraphs]:
    """One group or several, as a list.

    Raises:
        GraphError: Nothing at all was given.
    """
    groups = [graphs] if isinstance(graphs, PaddedGraphs) else list(graphs)
    if not groups:
        raise GraphError("no molecules: give a PaddedGraphs or a sequence of at least one")
    return groups


def pad(molecules: Sequence[tuple[Tensor, Tensor]], size: int | None = None) -> PaddedGraphs:
    """Pad single molecules to one group.

    Args:
        molecules: Pairs of nodes [a, p] and edges [a, a, q]; a may differ, p and q not.
        size: Atoms to pad to; by default the largest molecule's.

    Returns:
        The group, in the order given, zero in the padding.

    Raises:
        GraphError: No molecules, one whose shapes do not fit, or one larger than ``size``.
    """
    if not molecules:
        raise GraphError("no molecules: pad needs at least one")
    first_nodes, first_edges = molecules[0]
    for k, (nodes, edges) in enumerate(molecules):
        if nodes.ndim != 2 or nodes.shape[0] < 1 or nodes.shape[1] != first_nodes.shape[-1]:
            raise GraphError(
                f"nodes of molecule {k} must be [a, {first_nodes.shape[-1]}] with a at least 1, "
                f"got {list(nodes.shape)}"
            )
        wanted = (nodes.shape[0], nodes.shape[0], first_edges.shape[-1])
        if tuple(edges.shape) != wanted:
            raise GraphError(f"edges of molecule {k} must be {wanted}, got {list(edges.shape)}")
    counts = [nodes.shape[0] for nodes, _ in molecules]
    most = max(counts) if size is None else size
    if max(counts) > most:
        large = counts.index(max(counts))
        raise GraphError(
            f"molecule {large} has {counts[large]} atoms, more than size={most}; give at least "
            f"size={counts[large]}"
        )
    all_nodes = first_nodes.new_zeros(len(counts), most, first_nodes.shape[1])
    all_edges = first_edges.new_zeros(len(counts), most, most, first_edges.shape[2])
    for k, (count, (nodes, edges)) in enumerate(zip(counts, molecules, strict=True)):
        all_nodes[k, :count] = nodes
        all_edges[k, :count, :count] = edges
    atoms = torch.tensor(counts, dtype=torch.int64, device=first_nodes.device)
    return PaddedGraphs(nodes=all_nodes, edges=all_edges, atoms=atoms)
