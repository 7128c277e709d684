"""The QM9 network built from PyTorch Geometric's ``NNConv`` and ``Set2Set``.

The reference that :class:`models.MessagePassing` is tested against; parameters have the same names,
shapes and, under one seed, values. It builds a matrix for every edge: slow, and large in memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.errors import MissingPackageError
from models.graphs import PaddedGraphs, as_groups
from models.message_passing import MessagePassing


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


class MessagePassingPyG(nn.Module):
    """:class:`models.MessagePassing` on PyTorch Geometric.

    Raises:
        MissingPackageError: torch-geometric is not installed.
        NetworkError: A setting below 1, or an unknown activation.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Make the network; arguments as for :class:`models.MessagePassing`."""
        super().__init__()
        layers = import_geometric().nn
        twin = MessagePassing(*given, **settings)
        width = twin.conv.width
        self.steps, self.out_features = twin.steps, twin.out_features
        # Values come from the twin, so that a seed means the same in both forms and moves the
        # random state as far.
        with torch.random.fork_rng(devices=[]):
            self.lin0 = twin.lin0
            self.conv = layers.NNConv(width, width, copy.deepcopy(twin.conv.nn), aggr="mean")
            self.gru = nn.GRU(width, width)
            self.set2set = layers.Set2Set(width, processing_steps=twin.set2set.steps)
            self.lin1 = twin.lin1
        self.activation = twin.activation
        self.load_state_dict(twin.state_dict())

    def forward(self, graphs: PaddedGraphs | Sequence[PaddedGraphs] | Any) -> Tensor:
        """Features of the molecules.

        Args:
            graphs: One group, several, or a batch from :func:`to_geometric`, which saves the
                conversion.

        Returns:
            [sum B, out_features], in the order given.
        """
        if isinstance(graphs, PaddedGraphs | Sequence):
            graphs = to_geometric(graphs)
        state = functional.relu(self.lin0(graphs.x))
        hidden = state[None]
        for _ in range(self.steps):
            message = functional.relu(self.conv(state, graphs.edge_index, graphs.edge_attr))
            out, hidden = self.gru(message[None], hidden)
            state = out[0]
        pooled = self.set2set(state, graphs.batch, dim_size=graphs.num_graphs)
        return self.activation(self.lin1(pooled))
