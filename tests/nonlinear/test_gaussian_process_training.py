"""Gaussian-process heads in the engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training import FEATURES, backbone, problem, train

from bayesagg_pyro import heads, inference


@pytest.mark.parametrize("deep", [False, True])
def test_backbone_and_kernel_learn(deep: bool, rng: torch.Generator) -> None:
    x, y = problem(rng)
    network = nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh()) if deep else None
    head = heads.GaussianProcess(FEATURES, tasks=2, inducing=16, deep=network, noise_scale=0.3)
    net = backbone()
    head.place(net(x), generator=rng)
    before = [p.detach().clone() for p in head.inducing.parameters()]
    points = head.inducing.points.clone()
    history, mtl, _ = train(head, x, y, epochs=8, net=net)
    assert history[-1] < 0.5 * history[0]
    assert all(
        not torch.equal(a, b) for a, b in zip(before, head.inducing.parameters(), strict=True)
    )
    assert torch.equal(points, head.inducing.points)
    # Far from all inducing points, the prior is what is left.
    far = mtl.predictive(100 + net(x))["y"].variance
    near = mtl.predictive(net(x))["y"].variance
    assert far.mean() > near.mean()


def test_a_classifier_on_inducing_points(rng: torch.Generator) -> None:
    x, y = problem(rng)
    head = heads.Bernoulli(FEATURES, tasks=2).embed(heads.InducingPoints(FEATURES, 12))
    assert isinstance(head.embedding, heads.InducingPoints)
    net = backbone()
    head.embedding.place(net(x), generator=rng)
    scheme = inference.TaylorGGN()
    history, mtl, _ = train(head, x, (y > 0).float(), inference=scheme, epochs=10, net=net)
    assert history[-1] < 0.85 * history[0]
    probs = mtl.predictive(net(x))["y"].probs
    assert ((probs > 0.5) == (y > 0)).double().mean() > 0.65
