"""A small engine with data, for tests of whole steps and epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads, priors

POWERS = {"energy": 0.85, "other": 0.75}


class Toy:
    """Two heads of 2 and 3 tasks on a small network in float64, with data of two batches."""

    def __init__(
        self, rng: torch.Generator, dtype: torch.dtype = torch.float64, **settings: Any
    ) -> None:
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).to(dtype)
        self.heads = {
            "energy": heads.Gaussian(5, tasks=2, noise_scale=0.5),
            "other": heads.Gaussian(5, tasks=3, bias=True, noise_scale=[0.3, 1.0, 2.0]),
        }
        settings.setdefault("aggregation", aggregation.PrecisionWeighted.paper(power=POWERS))
        settings.setdefault("prior", priors.FullData(variance=0.5))
        settings.setdefault("reduction", "mean")
        self.mtl = ba.BayesAgg(self.heads, **settings).to(dtype)
        n = 24
        self.x = torch.randn(n, 4, generator=rng, dtype=dtype)
        truth = torch.randn(4, 5, generator=rng, dtype=dtype)
        y = self.x @ truth + 0.3 * torch.randn(n, 5, generator=rng, dtype=dtype)
        self.y = {"energy": y[:, :2], "other": y[:, 2:]}
        self.batches = [slice(0, 16), slice(16, 24)]

    def batch(self, rows: slice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.x[rows], {name: y[rows] for name, y in self.y.items()}

    def step(self, rows: slice) -> dict[str, torch.Tensor]:
        x, y = self.batch(rows)
        return self.mtl.backward(self.backbone(x), y)

    def epoch(self) -> None:
        for rows in self.batches:
            self.step(rows)
        self.mtl.update_prior()

    def clear(self) -> None:
        for module in (self.backbone, self.mtl):
            module.zero_grad(set_to_none=True)

    def grads(self) -> list[torch.Tensor]:
        return [p.grad.clone() for p in self.backbone.parameters() if p.grad is not None]

    def bayes(self) -> Toy:
        self.epoch()
        self.mtl.start_bayes()
        self.clear()
        return self
