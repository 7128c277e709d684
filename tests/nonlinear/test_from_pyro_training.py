"""Pyro models as heads in the engine."""

from __future__ import annotations

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from training import FEATURES, problem, train

from bayesagg_pyro import heads, inference


def robust(features: Tensor, targets: Tensor | None = None) -> None:
    """Student's t noise of unknown scale around a linear predictor with an intercept."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2, FEATURES), 1.0).to_event(2))
    shift = pyro.sample("shift", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(torch.full((2,), -1.0), 0.5).to_event(1))
    with pyro.plate("examples", len(features), dim=-2), pyro.plate("tasks", 2, dim=-1):
        pyro.sample("y", dist.StudentT(4.0, features @ weight.mT + shift, scale), obs=targets)


@pytest.mark.parametrize(
    "scheme", [inference.TaylorGGN(), inference.Laplace(max_steps=2)], ids=repr
)
def test_the_backbone_learns(scheme: inference.Scheme, rng: torch.Generator) -> None:
    x, y = problem(rng)
    head = heads.FromPyro(robust, FEATURES, tasks=2)
    history, mtl, net = train(head, x, y, inference=scheme, epochs=3, samples=32)
    assert history[-1] < history[0] - 0.1  # nats
    assert mtl.predictive(net(x))["y"].log_prob(y).shape == (96, 2)
    state = copy.deepcopy(mtl.state_dict())
    _, other, _ = train(heads.FromPyro(robust, FEATURES, tasks=2), x, y, epochs=1)
    other.load_state_dict(state)
    assert torch.equal(other.predict(net(x))["y"], mtl.predict(net(x))["y"])


class Softplus(PyroModule):
    """A model that is a module: its parameter is learned, its sample sites are inferred."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, features: Tensor, targets: Tensor | None = None) -> None:
        weight = pyro.sample("weight", dist.Normal(torch.zeros(2, FEATURES), 1.0).to_event(2))
        f = features @ weight.mT + self.shift
        with pyro.plate("examples", len(features), dim=-2), pyro.plate("tasks", 2, dim=-1):
            pyro.sample("y", dist.Normal(f, 0.3), obs=targets)


def test_parameters_of_a_module_are_point_estimates(rng: torch.Generator) -> None:
    x, y = problem(rng)
    model = Softplus()
    head = heads.FromPyro(model, FEATURES, tasks=2)
    assert head.has_own_parameters
    history, _, _ = train(
        head, x, y + 2, inference=inference.Laplace(max_steps=3), samples=32, epochs=4
    )
    assert history[-1] < history[0]
    assert (model.shift > 0.1).all()
    assert not dict(pyro.get_param_store().items())
