r"""Edge-conditioned convolution that never builds an edge's matrix.

The layer of Gilmer et al. (2017), *Neural Message Passing for Quantum Chemistry*, sends
:math:`W(e_{ij})^T h_j` from atom j to atom i, with a matrix :math:`W(e)` computed by a two-layer
network. Its last layer is linear, so with :math:`r = \mathrm{ReLU}(W_1 e + b_1)`

.. math:: \sum_j W(e_{ij})^T h_j = \sum_k V_k \Big(\sum_j r_{ijk} h_j\Big) + V_0 \sum_j h_j ,

which needs one coefficient per edge and hidden unit, not one per edge and matrix entry. Three
more steps make it two matrix products and nothing else:

* :math:`b_1` becomes the weight of one more edge feature, which is 1 on real edges. Where all
  features are set to 0 (padding, diagonal), r is exactly 0: no mask afterwards.
* ReLU commutes with positive factors, so features divided by the number of neighbours turn the sum
  into a mean.
* One more hidden unit passes that extra feature through, so :math:`V_0` is just another
  :math:`V_k`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.graphs import PaddedGraphs

# Bytes of the intermediate [molecules · n, hidden · width] at a time: small enough for a CPU's
# cache and for the allocator to reuse; on other devices few large kernels are better.
_CPU_CHUNK: Final = 8 * 2**20
_DEVICE_CHUNK: Final = 256 * 2**20


class _Contract(torch.autograd.Function):
    """``out[b, i] = Σ_k (Σ_j r[b, i, k, j] h[b, j]) V_k``, by a few molecules at a time.

    The sum over j costs a fifth of the product with V but is the only large intermediate; it is
    computed again for the gradient. The gradient is made of differentiable operations, so higher
    derivatives and batched gradients work.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor, h: Tensor, kernel: Tensor) -> Tensor:
        """Contract r [B, n·K, n], h [B, n, F] and kernel [K·F, G] to [B, n, G]."""
        size = h.shape[1]
        chunk = _chunk(h, kernel)
        outs = []
        for r_c, h_c in zip(r.split(chunk), h.split(chunk), strict=True):
            gathered = torch.bmm(r_c, h_c).reshape(-1, kernel.shape[0])
            outs.append(torch.mm(gathered, kernel).view(-1, size, kernel.shape[1]))
        return _join(outs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, h, kernel = ctx.saved_tensors
        chunk = _chunk(h, kernel)
        r_grads, h_grads, kernel_grad = [], [], None
        for r_c, h_c, g_c in zip(
            r.split(chunk), h.split(chunk), grads[0].split(chunk), strict=True
        ):
            g_flat = g_c.reshape(-1, kernel.shape[1])
            gathered = torch.bmm(r_c, h_c).reshape(-1, kernel.shape[0])
            if kernel_grad is None:
                kernel_grad = torch.mm(gathered.t(), g_flat)
            else:
                kernel_grad = kernel_grad.addmm_(gathered.t(), g_flat)
            del gathered
            spread = torch.mm(g_flat, kernel.t()).view(r_c.shape[0], r_c.shape[1], h_c.shape[2])
            r_grads.append(torch.bmm(spread, h_c.transpose(1, 2)))
            h_grads.append(torch.bmm(r_c.transpose(1, 2), spread))
        assert kernel_grad is not None  # a group is never empty
        return _join(r_grads), _join(h_grads), kernel_grad


def _chunk(h: Tensor, kernel: Tensor) -> int:
    limit = _CPU_CHUNK if h.device.type == "cpu" else _DEVICE_CHUNK
    return max(1, limit // (h.shape[1] * kernel.shape[0] * h.element_size()))


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class EdgeConv(nn.Module):
    """Mean over the neighbours of messages with edge-dependent matrices, plus root weight and bias.

    Parameters have the names and shapes of ``torch_geometric.nn.NNConv(width, width, nn)`` with
    ``nn`` a ``Sequential(Linear, ReLU, Linear)``; a layer's use is :meth:`prepare` once for a
    batch, then :meth:`forward` as often as there are steps.
    """

    def __init__(
        self,
        width: int,
        edge_features: int,
        edge_width: int,
        messages: torch.dtype | None = None,
    ) -> None:
        """Make the layer for features [*, width] and edges [*, edge_features].

        Args:
            width: Features of an atom.
            edge_features: Features of a pair.
            edge_width: Hidden units of the network on the edges.
            messages: In which the messages are computed and summed; None as everything else.
        """
        super().__init__()
        self.width, self.messages = width, messages
        self.nn = nn.Sequential(
            nn.Linear(edge_features, edge_width), nn.ReLU(), nn.Linear(edge_width, width * width)
        )
        self.lin = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def prepare(self, groups: list[PaddedGraphs]) -> tuple[list[Tensor], Tensor]:
        """What all steps share.

        Returns:
            For each group [B, n · (edge_width + 1), n], the coefficients r divided by the number
            of neighbours; and the kernel [(edge_width + 1) · width, width].
        """
        first, second = self.nn[0], self.nn[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        pass_through = first.weight.new_zeros(1, first.in_features + 1)
        pass_through[0, -1] = 1.0
        weight = torch.cat([torch.cat([first.weight, first.bias[:, None]], dim=1), pass_through])
        units = torch.cat([second.weight, second.bias[:, None]], dim=1)
        kernel = units.view(self.width, self.width, -1).permute(2, 0, 1).reshape(-1, self.width)
        coefficients = [_coefficients(group, weight) for group in groups]
        if self.messages is not None:
            return [r.to(self.messages) for r in coefficients], kernel.to(self.messages)
        device_type = kernel.device.type
        if kernel.dtype == torch.float32 and torch.is_autocast_enabled(device_type):
            kernel = kernel.to(torch.get_autocast_dtype(device_type))
        return coefficients, kernel

    def forward(self, groups: list[Tensor], coefficients: list[Tensor], kernel: Tensor) -> Tensor:
        """One step.

        Args:
            groups: For each group the features [B, n, width].
            coefficients: From :meth:`prepare`.
            kernel: From :meth:`prepare`.

        Returns:
            [N, width], N the sum of B · n over the groups in their order.
        """
        messages = [
            _Contract.apply(r, h.to(r.dtype), kernel).flatten(0, 1)
            for h, r in zip(groups, coefficients, strict=True)
        ]
        nodes = torch.cat([h.flatten(0, 1) for h in groups])
        return _join(messages) + functional.linear(nodes, self.lin.weight, self.bias)


def _coefficients(group: PaddedGraphs, weight: Tensor) -> Tensor:
    """[B, n · K, n] from edges and the augmented first layer [K, q + 1]."""
    batch, size = len(group), group.size
    pairs = group.pairs()[..., None]
    share = (group.atoms - 1).clamp(min=1).to(group.edges.dtype).reciprocal()
    features = torch.cat([group.edges, torch.ones_like(group.edges[..., :1])], dim=-1)
    features = (features * share[:, None, None, None]).masked_fill(~pairs, 0.0)
    features = features.transpose(2, 3).reshape(batch * size, -1, size)
    r = torch.bmm(weight.expand(batch * size, -1, -1), features).relu_()
    return r.view(batch, size * weight.shape[0], size)
