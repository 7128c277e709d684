"""The QM9 network built from PyTorch Geometric's ``NNConv`` and ``Set2Set``.

The reference that :class:`models.MessagePassing` is tested against; parameters have the same names,
shapes and, under one seed, values. It builds a matrix for every edge: slow, and large in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.geometric import import_geometric, to_geometric
from models.graphs import PaddedGraphs
from models.message_passing import MessagePassing


class MessagePassingPyG(nn.Module):
    """:class:`models.MessagePassing` on PyTorch Geometric.

    Raises:
        MissingPackageError: torch-geometric is not installed.
        NetworkError: A setting below 1, or an unknown activation.
    """

    def __init__(
        self,
        node_features: int = 11,
        edge_features: int = 5,
        width: int = 64,
        edge_width: int = 128,
        steps: int = 3,
        set2set_steps: int = 3,
        out_features: int = 64,
        activation: str = "relu",
    ) -> None:
        """Make the network; arguments as for :class:`models.MessagePassing`."""
        super().__init__()
        layers = import_geometric().nn
        twin = MessagePassing(
            node_features,
            edge_features,
            width,
            edge_width,
            steps,
            set2set_steps,
            out_features,
            activation,
        )
        self.steps, self.out_features = steps, out_features
        # Values come from the twin, so that a seed means the same in both forms and moves the
        # random state as far.
        with torch.random.fork_rng(devices=[]):
            self.lin0 = nn.Linear(node_features, width)
            self.conv = layers.NNConv(
                width,
                width,
                nn.Sequential(
                    nn.Linear(edge_features, edge_width),
                    nn.ReLU(),
                    nn.Linear(edge_width, width * width),
                ),
                aggr="mean",
            )
            self.gru = nn.GRU(width, width)
            self.set2set = layers.Set2Set(width, processing_steps=set2set_steps)
            self.lin1 = nn.Linear(2 * width, out_features)
        self.activation = twin.activation
        self.load_state_dict(twin.state_dict())

    def forward(self, graphs: PaddedGraphs | Sequence[PaddedGraphs] | Any) -> Tensor:
        """Features of the molecules.

        Args:
            graphs: One group, several, or a batch from :func:`models.geometric.to_geometric`, which
                saves the conversion.

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
