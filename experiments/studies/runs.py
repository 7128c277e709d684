"""Runs of the one trainer that studies are made of, with heads of any kind on the same features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from bayesagg_pyro import gradients, heads
from bayesagg_pyro.heads import Head, InducingPoints
from experiments import methods
from experiments.benchmark import Benchmark
from experiments.methods import BayesAggMethod, BayesAggOptions, Method
from experiments.randomness import seed_of
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import Trainer

#: Kind of head, and its title.
KINDS: Final = {
    "linear": "linear",
    "last-layer": "network, last layer",
    "all-parameters": "network, all parameters",
    "gaussian-process": "Gaussian process",
}
#: Standard deviation of the regression's residuals, in units of its standardised targets.
NOISE: Final = 0.35
_HIDDEN: Final = 16
_POINTS: Final = 32
#: Draws of all parameters of a network for the moments of its gradient.
_DRAWS: Final = 128


def make(kind: str, width: int, bias: bool) -> dict[str, Head]:
    """A regression head and one of two binary tasks."""
    plain: dict[str, Head] = {
        "regression": heads.Gaussian(width, bias=bias, noise_scale=NOISE),
        "binary": heads.Bernoulli(width, 2, bias=bias),
    }
    if kind == "linear":
        return plain
    if kind == "last-layer":
        return {n: heads.Network.last_layer(_network(h, bias), h) for n, h in plain.items()}
    if kind == "all-parameters":
        return {n: heads.Network(_network(h, bias), h) for n, h in plain.items()}
    return {
        "regression": heads.GaussianProcess(width, inducing=_POINTS, noise_scale=NOISE),
        "binary": heads.Bernoulli(width, 2, bias=False).embed(InducingPoints(width, _POINTS)),
    }


class HeadsRun(Run):
    """A run of BayesAgg with heads of any kind."""

    def build(self, device: torch.device, constants: Mapping[str, Tensor] | None = None) -> Method:
        """As every run, with a method that knows what heads that are not linear need."""
        torch.manual_seed(seed_of(self.settings.seed, "initial weights"))
        backbone = self.benchmark.backbone().to(device)
        made = self.benchmark.heads(self.settings.head_bias)
        own = {name: head.to(device) for name, head in made.items()}
        assert isinstance(self.options, BayesAggOptions)
        return _Placing(backbone, own, self.options)


class _Placing(BayesAggMethod):
    """Inducing points move with the features while the pre-training lasts, once per epoch.

    The gradients of a network with all its parameters are sampled, and a few draws do.
    """

    _due = True

    def __init__(
        self, backbone: nn.Module, heads_: dict[str, Head], options: BayesAggOptions
    ) -> None:
        super().__init__(backbone, heads_, options)
        for name, head in heads_.items():
            if isinstance(head, heads.Network):
                self.mtl.estimators[name] = gradients.MonteCarlo(_DRAWS)

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self._due = epoch < self.pretrain

    def backward(self, inputs: Any, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._due:
            self._due = False
            with torch.no_grad():
                features = self.backbone(inputs)
            for head in self._heads.values():
                if isinstance(head.embedding, InducingPoints):
                    head.embedding.place(features, generator=torch.Generator().manual_seed(0))
        return super().backward(inputs, targets)


def _network(likelihood: Head, bias: bool) -> nn.Module:
    outputs = likelihood.tasks * likelihood.outputs_per_task
    return nn.Sequential(
        nn.Linear(likelihood.in_features, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, outputs, bias)
    )


#: Of the digits benchmark, on one thread.
SETTINGS: Mapping[str, Any] = {
    "batch_size": 128,
    "learning_rate": 1e-2,
    "schedule": "steps",
    "head_bias": True,
    "device": "cpu",
    "threads": 1,
}


def train(
    benchmark: Benchmark,
    method: str,
    folder: Path,
    *,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    record: int | None = None,
) -> tuple[Trainer, dict[str, Any]]:
    """Train into a folder, anew.

    Returns:
        The trainer, whose method is that of the last epoch, and the results.
    """
    usual = benchmark.method_options.get(method, {})
    chosen = methods.options(method, {**usual, **(options or {})})
    kind = HeadsRun if method == "bayesagg" else Run
    run = kind(benchmark, method, chosen, Settings(**{**SETTINGS, **settings}))
    trainer = Trainer(run, folder, overwrite=True, record=record)
    return trainer, trainer.train()
