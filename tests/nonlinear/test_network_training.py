"""Network heads in the engine: backbone and head learn, states come back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from training import FEATURES, backbone, problem, train

from bayesagg_pyro import aggregation, heads, inference


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "scheme",
    [inference.TaylorGGN(), inference.TaylorGGN("diag"), inference.Laplace(max_steps=5)],
    ids=repr,
)
def test_all_parameters(scheme: inference.Scheme, rng: torch.Generator) -> None:
    x, y = problem(rng)
    net = module()
    before = copy.deepcopy(net.state_dict())
    head = heads.Network(net, heads.Gaussian(FEATURES, tasks=2, noise_scale=0.3))
    history, mtl, backbone = train(head, x, y, inference=scheme, epochs=4, samples=64)
    assert history[-1] < 0.65 * history[0]
    assert all(not torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert mtl.info is not None
    assert mtl.info.bayesian
    assert mtl.predictive(backbone(x))["y"].log_prob(y).shape == (96, 2)


@pytest.mark.parametrize("scheme", [inference.Conjugate(), inference.TaylorGGN()], ids=repr)
def test_last_layer(scheme: inference.Scheme, rng: torch.Generator) -> None:
    x, y = problem(rng)
    head = heads.Network.last_layer(
        module(), heads.Gaussian(FEATURES, tasks=2, bias=True, noise_scale=0.3)
    )
    assert head.embedding is not None
    before = copy.deepcopy(head.embedding.state_dict())
    history, mtl, backbone = train(head, x, y, inference=scheme)
    assert history[-1] < 0.5 * history[0]
    # The body is a point estimate: it learns also under a scheme that needs none of the weights.
    assert all(not torch.equal(before[k], v) for k, v in head.embedding.state_dict().items())
    constant = torch.distributions.Normal(y.mean(0), y.std(0))
    found = mtl.predictive(backbone(x))["y"]
    assert found.log_prob(y).mean() > constant.log_prob(y).mean()


@pytest.mark.parametrize("last", [False, True])
def test_states_come_back(last: bool, rng: torch.Generator) -> None:
    def make() -> heads.Head:
        likelihood = heads.Gaussian(FEATURES, tasks=2, bias=True)
        if last:
            return heads.Network.last_layer(module(), likelihood)
        return heads.Network(module(), likelihood)

    x, y = problem(rng)
    _, mtl, net = train(make(), x, y, epochs=2, samples=None if last else 32)
    _, other, _ = train(make(), x, y, epochs=1, samples=None if last else 32)
    other.load_state_dict(mtl.state_dict())
    h = net(x).detach()
    assert torch.equal(mtl.predict(h)["y"], other.predict(h)["y"])
    leaves = [h.clone().requires_grad_() for _ in range(3)]
    for engine, leaf in zip((mtl, other, copy.deepcopy(mtl)), leaves, strict=True):
        engine.backward(leaf, {"y": y})
    assert leaves[0].grad is not None
    assert torch.equal(leaves[0].grad, leaves[1].grad)
    assert torch.equal(leaves[0].grad, leaves[2].grad)


def test_beside_a_linear_head(rng: torch.Generator) -> None:
    import bayesagg_pyro as ba

    x, y = problem(rng)
    net = backbone()
    mtl = ba.BayesAgg(
        {
            "network": heads.Network(module(), heads.Gaussian(FEATURES, tasks=2)),
            "linear": heads.Bernoulli(FEATURES),
        },
        aggregation.PrecisionWeighted.paper(power=0.5),
        generator=torch.Generator().manual_seed(0),
    )
    mask = torch.rand(96, 2, generator=rng) > 0.5
    targets = {"network": (y, mask), "linear": (y[:, 0] > 0).long()}
    mtl.backward(net(x), targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(net(x), targets)
    assert mtl.info is not None
    assert mtl.info.weights is not None
    assert mtl.info.weights.shape == (3,)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
