"""Single steps of GRU and LSTM, with the parameters of ``torch.nn.GRU`` and ``torch.nn.LSTM``.

The modules of torch run whole sequences: for one step they cannot be compiled, and on a GPU they
bring in cuDNN's own precision settings.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class _Step(nn.Module):
    """Parameters of one recurrent layer, named, shaped and initialised as torch does."""

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
