"""What all recipes train: a regression and a classification on a small network."""

from __future__ import annotations

import os
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import bayesagg_pyro as ba
from bayesagg_pyro import heads

#: Examples of a step in all processes together; epochs, the first of which is the warm-up.
BATCH, EPOCHS = 30, 3
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Data(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Pairs (x, targets)."""

    def __init__(self, size: int = 120) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(size, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.x[index]
        return x, {"y": torch.sin(x[:2]), "b": (x[2:3] > 0).to(x.dtype)}


def network() -> tuple[nn.Module, ba.BayesAgg]:
    """Backbone and engine."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    mtl = ba.BayesAgg({"y": heads.Gaussian(8, tasks=2), "b": heads.Bernoulli(8)}, warmup_epochs=1)
    return backbone, mtl


def save(backbone: nn.Module, mtl: ba.BayesAgg) -> None:
    """A checkpoint, where a path was given; for the first process to write."""
    if sys.argv[1:]:
        torch.save({"backbone": backbone.state_dict(), "mtl": mtl.state_dict()}, sys.argv[1])
