"""Averages and copies of an engine predict, and say when a posterior is not theirs."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads, inference, priors

F64 = torch.float64


class Net(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Linear(5, 8)
        made = {"y": heads.Gaussian(8, tasks=2), "b": heads.Bernoulli(8)}
        self.mtl = ba.BayesAgg(made, warmup_epochs=2, **settings)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.mtl.predict(self.backbone(x))
        return found


TRUTH = torch.randn(5, 2, generator=torch.Generator().manual_seed(9))


def batch(generator: torch.Generator, n: int = 32) -> tuple[Tensor, dict[str, Tensor]]:
    x = torch.randn(n, 5, generator=generator)
    y = x @ TRUTH
    return x, {"y": y, "b": (y[:, :1] > 0).float()}


def train(net: Net, averages: list[AveragedModel], epochs: int = 8) -> None:
    g = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(epochs):
        for _ in range(10):
            x, y = batch(g)
            optimizer.zero_grad()
            net.mtl.backward(net.backbone(x), y)
            optimizer.step()
            for average in averages:
                average.update_parameters(net)
        net.mtl.update_prior()


@pytest.mark.parametrize(
    ("prior", "use_buffers"),
    [(None, False), (None, True), (priors.Running(300), True), (priors.PreviousBatch(), True)],
)
def test_averages_predict_and_want_a_refit_for_more(prior: Any, use_buffers: bool) -> None:
    net = Net(prior=prior)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    swa = AveragedModel(net, use_buffers=use_buffers)
    train(net, [ema, swa])
    late = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=use_buffers)
    train(net, [late], epochs=2)
    g = torch.Generator().manual_seed(5)
    x, y = batch(g, 400)
    for average in (ema, late):
        with torch.no_grad():
            error = (average(x)["y"] - y["y"]).square().mean() / y["y"].var()
        assert error < 0.05
    for average in (ema, swa, late):
        mtl, backbone = average.module.mtl, average.module.backbone
        loaded = Net(prior=prior)
        loaded.load_state_dict(average.module.state_dict())
        again = copy.deepcopy(loaded.mtl)
        for one in (mtl, loaded.mtl, again, copy.deepcopy(mtl), pickle.loads(pickle.dumps(mtl))):
            with pytest.raises(errors.StateError, match="refit"):
                one.predictive(backbone(x))
        mtl.refit((backbone(x), y) for x, y in [batch(g) for _ in range(20)])
        law = mtl.predictive(backbone(x))["y"]
        again.load_state_dict(mtl.state_dict())
        assert torch.equal(again.predictive(backbone(x))["y"].mean, law.mean)
        assert (law.mean - y["y"]).square().mean() / y["y"].var() < 0.01
        torch.testing.assert_close(law.mean.float(), average(x)["y"], rtol=1e-4, atol=1e-4)


def test_a_copy_that_nobody_changed_goes_on_to_the_bit() -> None:
    net = Net(generator=torch.Generator().manual_seed(0))
    train(net, [], epochs=3)
    g = torch.Generator().manual_seed(2)
    x, y = batch(g)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(
            other.mtl.predictive(x @ torch.ones(5, 8))["y"].mean,
            net.mtl.predictive(x @ torch.ones(5, 8))["y"].mean,
        )
        found = []
        for one in (copy.deepcopy(net), other):
            one.zero_grad()
            one.mtl.backward(one.backbone(x), y)
            one.mtl.update_prior()
            found.append((one.backbone.weight.grad, one.mtl.priors()["y"].mean))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        del found
        net.mtl.double().float()  # moves are no changes
        other = copy.deepcopy(net)
        other.mtl.double()
        other.mtl.predictive(other.backbone(x).double())


def test_weights_that_follow_a_posterior_are_not_moved_by_momentum() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    g = torch.Generator().manual_seed(1)
    for _ in range(2):
        for _ in range(5):
            x, y = batch(g)
            optimizer.zero_grad(set_to_none=False)
            net.mtl.backward(net.backbone(x), y)
            optimizer.step()
        net.mtl.update_prior()
    assert not net.mtl.warmup
    for _ in range(5):
        x, y = batch(g)
        optimizer.zero_grad(set_to_none=False)
        net.mtl.backward(net.backbone(x), y)
        optimizer.step()
    mean = net.mtl.posteriors()["y"].mean
    assert torch.equal(net.mtl.heads["y"].weight, mean.float())
    h = net.backbone(x).double()
    assert torch.equal(net.mtl.predict(h)["y"], h @ mean.mT)  # not the rounded ones
    early = Net()  # in its warm-up, with momentum of its own
    optimizer = torch.optim.Adam(early.parameters(), 1e-2)
    for loaded in (False, True):
        if loaded:
            early.mtl.load_state_dict(net.mtl.state_dict())
        optimizer.zero_grad(set_to_none=False)
        early.mtl.backward(early.backbone(x), y)
        optimizer.step()
    assert torch.equal(early.mtl.heads["y"].weight, mean.float())
    two = ba.BayesAgg({"y": heads.Gaussian(8, tasks=2), "z": heads.Gaussian(8)})
    h, weight = torch.randn(9, 8, requires_grad=True), two.heads["z"].weight
    optimizer = torch.optim.SGD(two.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        two.backward(h, {"z": h[:, :1].detach()})
        optimizer.step()
    two.update_prior()
    two.load_state_dict(net.mtl.state_dict(), strict=False)  # which ends the warm-up of both
    before = weight.detach().clone()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    "prior",
    [None, priors.Running(1e9), priors.PreviousBatch(0.0), priors.Fresh(), priors.Constant()],
)
def test_refit_is_the_posterior_of_the_batches_alone(prior: Any) -> None:
    g = torch.Generator().manual_seed(3)
    h, y = torch.randn(60, 8, generator=g, dtype=F64), torch.randn(60, 2, generator=g, dtype=F64)
    mtl = ba.BayesAgg({"y": heads.Gaussian(8, tasks=2)}, prior=prior).double()
    junk = torch.randn(9, 8, dtype=F64), {"y": torch.randn(9, 2, dtype=F64)}
    mtl.collect(*junk)
    mtl.update_prior([junk] if isinstance(prior, priors.Fresh) else None)
    mtl.collect(*junk)
    mtl.refit((h[i : i + 16], {"y": y[i : i + 16]}) for i in range(0, 60, 16))
    precision = torch.eye(8, dtype=F64) + h.mT @ h
    tolerance = 1e-6 if isinstance(prior, priors.Running) else 1e-10  # it fades, at half 1e9
    posterior = mtl.posteriors()["y"]
    torch.testing.assert_close(
        posterior.mean, torch.linalg.solve(precision, h.mT @ y).mT, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        posterior.covariance_matrix[0], precision.inverse(), rtol=tolerance, atol=tolerance
    )
    assert not mtl.warmup


def test_refit_refuses_nothing_and_bad_batches_and_changes_nothing() -> None:
    net = Net()
    train(net, [], epochs=3)
    before = net.mtl.state_dict()
    x, y = batch(torch.Generator().manual_seed(3))
    h = net.backbone(x).detach()
    for bad in ([], [(h, y), (h * torch.nan, y)], [(h, y), h], [(h[:, :2], y)]):
        with pytest.raises(errors.BayesAggError):
            net.mtl.refit(bad)
        after = net.mtl.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("given", ["left out", "masked", "of weight 0", "no features"])
def test_refit_refuses_batches_without_a_target_of_a_head(given: str) -> None:
    """Its posterior would be the base prior, in silence."""
    g = torch.Generator().manual_seed(3)
    h, y = torch.randn(20, 4, generator=g), torch.randn(20, 1, generator=g)
    mtl = ba.BayesAgg({"y": heads.Gaussian(4), "b": heads.Bernoulli(4)})
    whole = {"y": y, "b": (y > 0).float()}
    mtl.refit([(h, {"y": y}), (h, whole)])  # one batch with targets will do
    before = mtl.state_dict()
    bad: Any = {
        "left out": (h, {"y": y}),
        "masked": (h, {"y": y, "b": (whole["b"], torch.zeros(20, 1, dtype=torch.bool))}),
        "of weight 0": (h, {"y": y, "b": (whole["b"], None, torch.zeros(20))}),
        "no features": ({"y": h}, {"y": y}),
    }[given]
    with pytest.raises(errors.StateError, match=r"no target of \['b'\]"):
        mtl.refit([bad])
    after = mtl.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_another_scheme_on_trained_heads() -> None:
    net = Net()
    train(net, [], epochs=3)
    with pytest.raises(errors.StateError, match="refit"):
        net.mtl.schemes["b"] = inference.Laplace()  # type: ignore[index]
    mtl = ba.BayesAgg(
        dict(net.mtl.heads.items()),
        aggregation.PrecisionWeighted(),
        inference={"y": inference.Conjugate(), "b": inference.Laplace()},
    )
    x, y = batch(torch.Generator().manual_seed(3))
    mtl.refit([(net.backbone(x), y)])
    head, h = net.mtl.heads["b"], net.backbone(x).detach()
    expected = inference.Laplace().infer(head, h, y["b"], priors.isotropic(head, 1.0))
    torch.testing.assert_close(mtl.posteriors()["b"].mean, expected.mean)


@pytest.mark.parametrize("mode", ["inference", "no_grad", "autocast"])
def test_what_is_made_in_any_mode_trains_on(mode: str) -> None:
    modes = {
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    found = []
    for context in (None, modes[mode]):
        net = Net(prior={"y": priors.Running(200), "b": priors.FullData()})
        g = torch.Generator().manual_seed(1)
        for epoch in range(4):
            x, y = batch(g)
            net.zero_grad()
            net.mtl.backward(net.backbone(x), y)
            h = net.backbone(x).detach()
            with nullcontext() if context is None else context():
                net.mtl.collect(h, y)
                net.mtl.update_prior()
                net.mtl.predictive(h)
                net.mtl.load_state_dict(net.mtl.state_dict())
                if epoch == 2:
                    net.mtl.refit([(h, y)])
        net.mtl.predict(h.requires_grad_())["y"].sum().backward()
        law = net.mtl.predictive(h)["y"]
        found.append((net.backbone.weight.grad, law.mean, law.variance, h.grad))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "head",
    [heads.Gaussian(5), heads.Bernoulli(5), heads.Categorical(5, 3), heads.StudentT(5)],
    ids=lambda head: type(head).__name__,
)
def test_what_was_derived_in_inference_mode_has_gradients(head: heads.Head) -> None:
    g = torch.Generator().manual_seed(0)
    h, y = torch.randn(20, 5, generator=g), torch.arange(20)[:, None] % 2
    if head.target_kind == "real":
        y = y.float()
    mtl = ba.BayesAgg({"y": head})
    mtl.refit([(h, {"y": y})])
    with torch.inference_mode():
        mtl.predictive(h)["y"].log_prob(y)
    at, features = h.clone().requires_grad_(), h.clone().requires_grad_()
    mtl.predictive(at)["y"].log_prob(y).sum().backward()
    mtl.backward(features, {"y": y})
    assert at.grad is not None
    assert at.grad.abs().max() > 0
    assert features.grad is not None
    assert features.grad.abs().max() > 0
