"""An engine with four kinds of heads on one small network, for tests of whole steps."""

from __future__ import annotations

import torch
from dense import normal
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, priors


class World:
    """Four kinds of heads on one network, with data of 20 examples."""

    def __init__(self, rng: torch.Generator, order: tuple[str, ...] | None = None, **settings):
        self.backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
        self.x = normal(rng, 20, 4)
        with torch.no_grad():
            for p in self.backbone.parameters():
                p.copy_(normal(rng, *p.shape))
        self.y = {
            "age": normal(rng, 20, 2),
            "sick": (torch.rand(20, 3, generator=rng) < 0.4).double(),
            "side": torch.randint(0, 2, (20,), generator=rng),
            "kind": torch.randint(0, 3, (20, 2), generator=rng),
        }
        made = {
            "age": heads.Gaussian(5, 2, noise_scale=[0.5, 1.0]),
            "sick": heads.Bernoulli(5, 3, pos_weight=[1.0, 2.0, 0.5]),
            "side": heads.Categorical(5, 2),
            "kind": heads.Categorical(5, 3, tasks=2, class_weight=[1.0, 0.5, 2.0]),
        }
        start = {name: normal(rng, *head.weight.shape) for name, head in made.items()}
        order = order or tuple(made)
        self.heads = {name: made[name].double() for name in order}
        with torch.no_grad():
            for name, head in self.heads.items():
                head.weight.copy_(0.5 * start[name])
        self.powers = {"age": 0.8, "sick": 0.3, "side": 0.1, "kind": 0.05}
        settings.setdefault(
            "estimator",
            {"kind": gradients.Conditional(64, generator=torch.Generator().manual_seed(7))},
        )
        self.mtl = ba.BayesAgg(
            self.heads,
            aggregation.PrecisionWeighted.paper({name: self.powers[name] for name in order}),
            prior=priors.FullData(0.5),
            **settings,
        ).double()

    def targets(self):
        return {name: self.y[name] for name in self.heads}

    def bayes(self) -> World:
        self.mtl.collect(self.backbone(self.x), self.targets())
        self.mtl.update_prior()
        self.mtl.start_bayes()
        return self

    def step(self, targets=None) -> dict[str, torch.Tensor]:
        return self.mtl.backward(self.backbone(self.x), targets or self.targets())

    def updates(self) -> dict[str, torch.Tensor]:
        found = {f"backbone {k}": p.grad for k, p in self.backbone.named_parameters()}
        heads_ = {name: head.weight.grad for name, head in self.heads.items()}
        return {k: g.clone() for k, g in {**found, **heads_}.items() if g is not None}


def make(seed: int = 1234, **settings) -> World:
    return World(torch.Generator().manual_seed(seed), **settings)
