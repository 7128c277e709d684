"""Features without a usable graph: a typed error, and no gradient has changed."""

import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, heads, inference
from bayesagg_pyro.errors import StateError


@pytest.fixture
def setting():
    torch.manual_seed(0)
    backbone = torch.nn.Linear(5, 8)
    mtl = ba.BayesAgg({"a": heads.Gaussian(8, 2), "b": heads.Bernoulli(8, 3)})
    x = torch.randn(16, 5)
    targets = {"a": torch.randn(16, 2), "b": torch.randint(2, (16, 3)).float()}
    return backbone, mtl, x, targets


def _gradients(*modules):
    return [None if p.grad is None else p.grad.clone() for m in modules for p in m.parameters()]


def _same(before, after):
    return all(
        (a is None and b is None) or torch.equal(a, b) for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize("bayes", [False, True])
def test_features_used_twice(setting, bayes) -> None:
    backbone, mtl, x, targets = setting
    backbone = torch.nn.Sequential(backbone, torch.nn.Tanh())
    mtl.backward(backbone(x), targets)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    features = backbone(x)
    mtl.backward(features, targets)
    before = _gradients(backbone, mtl)
    with pytest.raises(StateError, match="compute them anew"):
        mtl.backward(features, targets)
    assert _same(before, _gradients(backbone, mtl))


@pytest.mark.parametrize("bayes", [False, True])
def test_without_gradients(setting, bayes) -> None:
    backbone, mtl, x, targets = setting
    mtl.backward(backbone(x), targets)
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    features = backbone(x)
    before = _gradients(backbone, mtl)
    with torch.no_grad(), pytest.raises(StateError, match="no_grad"):
        mtl.backward(features, targets)
    assert _same(before, _gradients(backbone, mtl))


def test_frozen_heads_and_other_parameters_of_a_head(setting) -> None:
    backbone, _, x, targets = setting

    class Scaled(heads.Gaussian):
        def __init__(self) -> None:
            super().__init__(8, 2)
            self.log_scale = torch.nn.Parameter(torch.zeros(2))

        def forward(self, features, weight=None):
            return super().forward(features, weight) * self.log_scale.exp()

    head = Scaled()
    mtl = ba.BayesAgg({"a": head})
    mtl.backward(backbone(x), {"a": targets["a"]})
    assert head.log_scale.grad is not None
    assert head.weight.grad is not None
    frozen = heads.Gaussian(8, 2)
    frozen.weight.requires_grad_(False)
    backbone.zero_grad()
    ba.BayesAgg({"a": frozen}).backward(backbone(x), {"a": targets["a"]})
    assert backbone.weight.grad is not None
    assert frozen.weight.grad is None


def test_an_error_in_the_backbone_is_handed_on_and_leaves_no_gradient(setting) -> None:
    backbone, mtl, x, targets = setting
    features = backbone(x)

    def hook(gradient):
        raise RuntimeError("of the user")

    features.register_hook(hook)
    with pytest.raises(RuntimeError, match="of the user"):
        mtl.backward(features, targets)
    assert all(p.grad is None for p in mtl.parameters())


@pytest.mark.parametrize("estimator", [None, gradients.MonteCarlo(4)])
def test_anomaly_mode(estimator) -> None:
    """Torch looks for NaN in every gradient there, and fails at gradients in batches."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    head = heads.Network.last_layer(network, heads.Gaussian(5, tasks=2, bias=True))
    mtl = ba.BayesAgg({"a": head}, inference=inference.Laplace(), estimator=estimator)
    x, updates = torch.randn(16, 5), []
    mtl.collect(x, {"a": x[:, :2]})
    mtl.update_prior()
    mtl.start_bayes()
    for on in (False, True):
        torch.manual_seed(1)
        h = x.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(on):
            mtl.backward(h, {"a": x[:, :2]}, collect=False)
            assert torch.is_anomaly_check_nan_enabled()
        updates.append(h.grad)
    assert torch.equal(*updates)
