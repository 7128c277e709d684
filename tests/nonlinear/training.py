"""A small two-task problem, and training on it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, heads, inference, priors

FEATURES = 6


def problem(rng: torch.Generator, n: int = 96) -> tuple[Tensor, Tensor]:
    """Inputs [n, 5] and two real targets [n, 2] that are smooth functions of them."""
    x = torch.randn(n, 5, generator=rng)
    y = torch.stack([torch.sin(x[:, 0] + x[:, 1]), (x[:, 2] * x[:, 3]).tanh()], 1)
    return x, y + 0.05 * torch.randn(n, 2, generator=rng)


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, FEATURES), nn.Tanh())


def train(
    head: heads.Head,
    x: Tensor,
    y: Tensor,
    *,
    inference: inference.Scheme | None = None,
    epochs: int = 10,
    batch: int = 32,
    lr: float = 0.02,
    samples: int | None = None,
    net: nn.Module | None = None,
) -> tuple[list[float], ba.BayesAgg, nn.Module]:
    """Mean loss of each epoch, one warm-up epoch first; with the engine and the backbone."""
    net = net or backbone()
    mtl = ba.BayesAgg(
        {"y": head},
        inference=inference,
        estimator=gradients.MonteCarlo(samples) if samples else None,
        prior=priors.FullData(1.0),
        warmup_epochs=1,
        reduction="sum",
        generator=torch.Generator().manual_seed(0),
    )
    optimizer = torch.optim.Adam([*net.parameters(), *mtl.parameters()], lr=lr)
    history = []
    for _ in range(epochs):
        total = 0.0
        for rows in torch.arange(len(x)).split(batch):
            optimizer.zero_grad()
            total += mtl.backward(net(x[rows]), {"y": y[rows]})["y"].mean().item() * len(rows)
            optimizer.step()
        mtl.update_prior()
        history.append(total / len(x))
    return history, mtl, net
