"""A synthetic regression benchmark with two heads, small enough to train in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from bayesagg_pyro import heads
from experiments.benchmark import Benchmark, Data, Task
from experiments.methods import WeightedLosses
from experiments.rows import Rows
from experiments.scores import MeanAbsoluteError, mixed
from experiments.settings import Settings

WIDTH = 8


@dataclass(frozen=True)
class Toy(Benchmark):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Toy"
    metric: ClassVar[str] = "mean absolute error"
    single_task_source: ClassVar[str] = "made up"
    default_settings = Settings(epochs=4, batch_size=32, device="cpu")

    rows: int = 160
    dropout: float = 0.1
    blow_up: bool = False

    @property
    def tasks(self) -> Sequence[Task]:
        return (
            Task("sine", "sin", "", 0.1),
            Task("square", "sq", "m", 0.2),
            Task("product", "prod", "meV", 100.0),
        )

    def load(self, device: torch.device) -> Data:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.rows, 4, generator=generator)
        pair = torch.stack([x[:, 0].sin(), x[:, 1].square() - 1], 1)
        alone = (x[:, 2] * x[:, 3])[:, None]
        if self.blow_up:
            alone = alone * 1e25
        first, second = self.rows * 6 // 10, self.rows * 8 // 10

        def part(low: int, high: int) -> Rows:
            targets = {"pair": pair[low:high].to(device), "alone": alone[low:high].to(device)}
            return Rows(x[low:high].to(device), targets)

        return Data(
            train=part(0, first),
            validation=part(first, second),
            test=part(second, self.rows),
            constants={"pair": pair[:first].mean(0), "alone": alone[:first].mean(0)},
            meter=mixed(
                {
                    "pair": partial(MeanAbsoluteError, torch.ones(2)),
                    "alone": partial(MeanAbsoluteError, torch.full((1,), 1000.0)),
                }
            ),
            about={"rows": self.rows},
        )

    def backbone(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(16, WIDTH), nn.Tanh()
        )

    def heads(self, bias: bool) -> dict[str, heads.Head]:
        return {
            "pair": heads.Gaussian(WIDTH, tasks=2, bias=bias),
            "alone": heads.Gaussian(WIDTH, tasks=1, bias=bias),
        }


class Squares(WeightedLosses):
    """A method that the library does not have."""

    name, title = "squares", "Squares"

    def total(self, losses: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return losses.square().sum() / 2


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if not key.startswith("seconds")}
        for record in history
    ]


def equal(a: Any, b: Any, at: str = "state") -> None:
    """Bit equality of nested state."""
    assert type(a) is type(b) or isinstance(a, dict), at
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, at
        assert torch.equal(a, b), at
    elif isinstance(a, dict):
        assert list(a) == list(b), at
        for key in a:
            equal(a[key], b[key], f"{at}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            equal(x, y, f"{at}[{i}]")
    else:
        assert a == b, at
