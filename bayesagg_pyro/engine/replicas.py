"""Whether the processes hold the same backbone, as they do where its gradients are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["checksum", "checksums"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(attached: Sequence[Tensor]) -> list[Tensor]:
    """One number for each parameter among these, and those that their graph leads to, [] int64.

    They are sums of the bits, which come out the same in any order. What is sharded, or has been
    freed since the forward pass, is left out: processes hold different parts of that.
    """
    return [
        checksum(leaf)
        for leaf in _leaves(attached)
        if type(leaf) is nn.Parameter and leaf.untyped_storage().size()
    ]


def checksum(tensor: Tensor) -> Tensor:
    """Sum of the bits, [] int64."""
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.view(_INTEGERS.get(tensor.element_size(), torch.uint8)).sum(dtype=torch.int64)


def _leaves(attached: Sequence[Tensor]) -> list[Tensor]:
    """Tensors at the ends of the graph, in an order that the graph alone decides."""
    found = [one for one in attached if one.grad_fn is None]
    waiting: list[Any] = [one.grad_fn for one in attached]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(one for one, _ in node.next_functions)
    return found
