"""The way over to PyTorch Geometric, imported only when somebody goes it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from models.errors import MissingPackageError
from models.graphs import PaddedGraphs, as_groups


def import_geometric() -> ModuleType:
    """Import ``torch_geometric`` with its ``data`` and ``nn``.

    Raises:
        MissingPackageError: It is not installed.
    """
    with warnings.catch_warnings():
        # It still scripts some functions at import, which torch 2.14 announces to remove.
        warnings.filterwarnings("ignore", "`torch.jit.script", module=r"torch\.jit\.")
        try:
            import torch_geometric
            import torch_geometric.data
            import torch_geometric.nn
        except ImportError as error:
            raise MissingPackageError(
                "this form of the network needs torch-geometric: pip install torch-geometric, or "
                "use models.MessagePassing, which equals it and does not"
            ) from error
    return torch_geometric  # type: ignore[no-any-return]


def to_geometric(graphs: PaddedGraphs | Sequence[PaddedGraphs]) -> Any:
    """The molecules as one ``torch_geometric.data.Batch`` of complete graphs without self-loops.

    Args:
        graphs: One group, or several.

    Returns:
        A batch in the same order: ``x`` [atoms, p], ``edge_index`` [2, edges] (source j, target i),
        ``edge_attr`` [edges, q].

    Raises:
        GraphError: Nothing was given.
        MissingPackageError: torch-geometric is not installed.
    """
    data = import_geometric().data
    molecules = []
    for group in as_groups(graphs):
        pairs = ~torch.eye(group.size, dtype=torch.bool, device=group.nodes.device)
        for nodes, edges, atoms in zip(group.nodes, group.edges, group.atoms.tolist(), strict=True):
            target, source = pairs[:atoms, :atoms].nonzero().unbind(1)
            molecules.append(
                data.Data(
                    x=nodes[:atoms],
                    edge_index=torch.stack([source, target]),
                    edge_attr=edges[target, source],
                )
            )
    return data.Batch.from_data_list(molecules)
