"""Two regression tasks whose losses differ a hundredfold, on one small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesagg_pyro import heads
from experiments import methods
from experiments.methods import Method

WIDTH = 12
#: Short schedules for methods whose usual ones are longer than a test.
QUICK: dict[str, dict[str, Any]] = {
    "bayesagg": {"pretrain": 2, "prior_variance": 1.0, "reduction": "sum", "resolution": "task"},
    "igbv2": {"base_epoch": 1, "learn_after": 1, "act_after": 2, "every": 2, "batch_size": 32},
    "nash-mtl": {"update_weights_every": 10},
    "ensemble-heads": {"members": 8},
    "ensemble-networks": {"members": 3},
}


def problem(rows: int = 64) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 3, generator=generator)
    return x, {
        "small": (x[:, 0] + x[:, 1]).sin()[:, None],
        "large": 10 * (x[:, 1] - x[:, 2]).tanh()[:, None],
    }


def fresh() -> tuple[nn.Module, dict[str, heads.Head]]:
    backbone = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, WIDTH), nn.Tanh())
    return backbone, {
        "small": heads.Gaussian(WIDTH, tasks=1, bias=True),
        "large": heads.Gaussian(WIDTH, tasks=1, bias=True),
    }


def build(
    name: str,
    make: Callable[[], tuple[nn.Module, dict[str, heads.Head]]] = fresh,
    seed: int = 0,
    **given: Any,
) -> Method:
    torch.manual_seed(seed)
    options = methods.options(name, {**QUICK.get(name, {}), **given})
    return methods.make(name, *make(), options, another=make)


def train(
    method: Method, epochs: int, steps: int = 10, rate: float = 1e-2, first: int = 0
) -> list[Tensor]:
    """Full-batch training; the losses of every step, [tasks]."""
    inputs, targets = problem()
    optimizer = torch.optim.Adam(method.parameters(), lr=rate)
    history = []
    for epoch in range(first, first + epochs):
        method.start_epoch(epoch)
        for _ in range(steps):
            optimizer.zero_grad()
            losses = method.backward(inputs, targets)
            optimizer.step()
            history.append(torch.cat([losses[name] for name in targets]))
        method.end_epoch(epoch)
    return history


def gradients(method: Method) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in method.parameters()]
