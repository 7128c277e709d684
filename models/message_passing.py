"""The message-passing network of the QM9 benchmark, without edge matrices.

Linear + ReLU, then one edge-conditioned convolution applied ``steps`` times, each time followed by
ReLU and one GRU step, then Set2Set (Vinyals et al., 2016) and Linear + ReLU. It works on molecules
padded to similar size, needs no graph library, and neither synchronises with the host nor has
shapes that depend on values, so it can be compiled or captured.
:mod:`models.message_passing_pyg` is the same network on PyTorch Geometric with the same state dict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.edge_conv import EdgeConv
from models.errors import GraphError, NetworkError
from models.graphs import PaddedGraphs, as_groups


class _Step(nn.Module):
    """Parameters of one recurrent layer, named, shaped and initialised as torch does.

    torch's own modules run whole sequences: for one step they cannot be compiled, and on a GPU they
    bring in cuDNN's own precision settings.
    """

    def __init__(self, input_size: int, hidden_size: int, gates: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden_size)
        rows = gates * hidden_size

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

        self.weight_ih_l0 = uniform(rows, input_size)
        self.weight_hh_l0 = uniform(rows, hidden_size)
        self.bias_ih_l0 = uniform(rows)
        self.bias_hh_l0 = uniform(rows)

    def _parameters_in_order(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0


class GRUStep(_Step):
    """One step of a gated recurrent unit."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Make a unit for inputs [*, input_size] and states [*, hidden_size]."""
        super().__init__(input_size, hidden_size, gates=3)

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """From inputs [N, input_size] and state [N, hidden_size] to the next state."""
        return torch.gru_cell(inputs, hidden, *self._parameters_in_order())


class LSTMStep(_Step):
    """One step of a long short-term memory."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Make a unit for inputs [*, input_size] and states [*, hidden_size]."""
        super().__init__(input_size, hidden_size, gates=4)

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """From inputs [N, input_size] and state (output, cell) to the next state."""
        output, cell = torch.lstm_cell(inputs, state, *self._parameters_in_order())
        return output, cell


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "elu": functional.elu,
    "softplus": functional.softplus,
    "tanh": torch.tanh,
}
"""Activations of the features, by name."""


class MessagePassing(nn.Module):
    """Molecules in, one feature vector each out.

    Raises:
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
        messages: torch.dtype | None = None,
    ) -> None:
        """Make the network; the defaults are the benchmark's.

        Args:
            node_features: Features p of an atom.
            edge_features: Features q of a pair.
            width: Features of an atom inside the network.
            edge_width: Hidden units of the network on the edges.
            steps: Message-passing steps.
            set2set_steps: Set2Set's steps.
            out_features: Features d of a molecule.
            activation: Of the features: "relu" (the benchmark's), or one whose units never die:
                "silu", "elu", "softplus", "tanh".
            messages: What the sums over pairs of atoms are computed in, such as ``torch.bfloat16``;
                the states of the atoms and all that follows keep the parameters' dtype, which None
                takes for messages, too.
        """
        super().__init__()
        check_settings(
            node_features=node_features,
            edge_features=edge_features,
            width=width,
            edge_width=edge_width,
            steps=steps,
            set2set_steps=set2set_steps,
            out_features=out_features,
        )
        self.node_features, self.edge_features = node_features, edge_features
        self.steps, self.out_features = steps, out_features
        self.lin0 = nn.Linear(node_features, width)
        self.conv = EdgeConv(width, edge_features, edge_width, messages)
        self.gru = GRUStep(width, width)
        self.set2set = PaddedSet2Set(width, set2set_steps)
        self.lin1 = nn.Linear(2 * width, out_features)
        self.activation = feature_activation(activation)

    def forward(self, graphs: PaddedGraphs | Sequence[PaddedGraphs]) -> Tensor:
        """Features of the molecules.

        Args:
            graphs: One group of molecules, or several; few groups of similar size cost least.

        Returns:
            [sum B, out_features], in the order of the groups.

        Raises:
            GraphError: No group, or one whose widths or dtype differ from the network's.
        """
        groups = as_groups(graphs)
        for group in groups:
            self._check(group)
        real = [group.real() for group in groups]
        nodes = torch.cat(
            [
                group.nodes.masked_fill(~mask[..., None], 0.0).flatten(0, 1)
                for group, mask in zip(groups, real, strict=True)
            ]
        )
        state = functional.relu(self.lin0(nodes))
        coefficients, kernel = self.conv.prepare(groups)
        for _ in range(self.steps):
            message = functional.relu(self.conv(_split(state, real), coefficients, kernel))
            state = self.gru(message, state)
        pooled = self.set2set(_split(state, real), real)
        return self.activation(self.lin1(pooled))

    def _check(self, group: PaddedGraphs) -> None:
        widths = group.nodes.shape[-1], group.edges.shape[-1]
        wanted = self.node_features, self.edge_features
        if widths != wanted:
            raise GraphError(
                f"the network was made for (node_features, edge_features) = {wanted}, but the "
                f"molecules have {widths}"
            )
        if group.nodes.dtype != self.lin0.weight.dtype:
            raise GraphError(
                f"the molecules are {group.nodes.dtype}, the network {self.lin0.weight.dtype}; "
                "convert with graphs.to(dtype=...)"
            )


class PaddedSet2Set(nn.Module):
    """Set2Set over padded sets; parameters as ``torch_geometric.nn.Set2Set``."""

    def __init__(self, width: int, steps: int) -> None:
        """Pool features [*, width] with ``steps`` rounds of attention."""
        super().__init__()
        self.width, self.steps = width, steps
        self.lstm = LSTMStep(2 * width, width)

    def forward(self, groups: list[Tensor], real: list[Tensor]) -> Tensor:
        """Pool every molecule.

        Args:
            groups: For each group the features [B, n, width].
            real: For each group [B, n] bool, which rows count.

        Returns:
            [sum B, 2 · width].
        """
        counts = [len(mask) for mask in real]
        query = groups[0].new_zeros(sum(counts), self.width)
        cell = torch.zeros_like(query)
        pooled = query.new_zeros(len(query), 2 * self.width)
        for _ in range(self.steps):
            query, cell = self.lstm(pooled, (query, cell))
            reads = []
            for h, mask, q in zip(groups, real, query.split(counts), strict=True):
                score = torch.matmul(h, q[:, :, None]).squeeze(-1)
                attention = score.masked_fill(~mask, -torch.inf).softmax(dim=-1)
                reads.append(torch.matmul(attention[:, None, :], h).squeeze(1))
            pooled = torch.cat([query, torch.cat(reads)], dim=-1)
        return pooled


def _split(flat: Tensor, real: list[Tensor]) -> list[Tensor]:
    """[N, width] cut into the groups' [B, n, width]."""
    parts = flat.split([mask.numel() for mask in real])
    return [part.view(*mask.shape, -1) for part, mask in zip(parts, real, strict=True)]


def check_settings(**settings: int) -> None:
    """Raise NetworkError for the first setting that is not a positive integer."""
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NetworkError(f"{name} must be an integer of at least 1, got {value!r}")


def feature_activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation called ``name``.

    Raises:
        NetworkError: There is none; the message lists those there are.
    """
    if name not in ACTIVATIONS:
        raise NetworkError(f"activation {name!r} is unknown; give one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
