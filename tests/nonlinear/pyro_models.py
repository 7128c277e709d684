"""Pyro models that the tests make heads of."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

D = 3


def linear(features: Tensor, targets: Tensor | None = None) -> None:
    """One task, weights with a prior of their own mean and scale."""
    weight = pyro.sample("weight", dist.Normal(torch.ones(D), 2.0).to_event(1))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Normal(features @ weight, 0.5), obs=targets)


def two_tasks(features: Tensor, targets: Tensor | None = None) -> None:
    """Two tasks in one site, weights in a plate."""
    with pyro.plate("tasks", 2):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("examples", len(features), dim=-2), pyro.plate("columns", 2, dim=-1):
        pyro.sample("y", dist.Normal(features @ weight.mT, 0.5), obs=targets)


def mixed(features: Tensor, targets: Tensor | None = None) -> None:
    """A hierarchy, and two tasks of different kinds, each with a site."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2, D), scale).to_event(2))
    spread = pyro.sample("spread", dist.LogNormal(-1.0, 0.3))
    f = features @ weight.mT
    with pyro.plate("examples", len(features)):
        first = None if targets is None else targets[:, 0]
        second = None if targets is None else targets[:, 1]
        pyro.sample("size", dist.LogNormal(f[:, 0], spread), obs=first)
        pyro.sample("robust", dist.StudentT(4.0, f[:, 1].tanh(), spread), obs=second)


def binary(features: Tensor, targets: Tensor | None = None) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    slip = pyro.sample("slip", dist.Uniform(0.0, 0.2))
    p = slip + (1 - 2 * slip) * torch.sigmoid(features @ weight)
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Bernoulli(p), obs=targets)


def classes(features: Tensor, targets: Tensor | None = None) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, D), 1.0).to_event(2))
    with pyro.plate("examples", len(features)):
        pyro.sample("y", dist.Categorical(logits=features @ weight.mT), obs=targets)
