"""Gradient scaling: features' and heads' gradients alike, and overflow is the scaler's to find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, priors


class Net:
    """A network with heads that learn by gradient and one that does not."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        kinds = {"r": heads.Gaussian(8, 2), "b": heads.Bernoulli(8), "c": heads.Categorical(8, 3)}
        self.mtl = ba.BayesAgg(kinds, **settings)
        self.weights = [*self.backbone.parameters(), *self.mtl.parameters()]
        self.optimizer = torch.optim.SGD(self.weights, 0.1, momentum=0.9)
        self.x = torch.randn(4, 16, 6)

    def targets(self, step: int) -> dict[str, torch.Tensor]:
        x = self.x[step % 4]
        return {"r": x[:, :2].sin(), "b": (x[:, 2:3] > 0).float(), "c": x[:, 3:].argmax(1)}

    def features(self, step: int) -> torch.Tensor:
        return self.backbone(self.x[step % 4])

    def bayes(self) -> Net:
        for step in range(4):
            self.mtl.collect(self.features(step).detach(), self.targets(step))
        self.mtl.update_prior()
        self.mtl.start_bayes()
        return self

    def train(self, scaler: GradScaler | None, clip: float | None = None) -> list[torch.Tensor]:
        for step in range(4):
            self.optimizer.zero_grad()
            self.mtl.backward(self.features(step), self.targets(step), scaler=scaler)
            if scaler:
                scaler.unscale_(self.optimizer)
            if clip:
                nn.utils.clip_grad_norm_(self.weights, clip)
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
        return [weight.detach().clone() for weight in self.weights]


@pytest.mark.parametrize("validate", ["now", "deferred"])
@pytest.mark.parametrize("bayes", [False, True])
def test_unscaled_gradients_are_those_without_a_scaler(bayes, validate) -> None:
    """Bit for bit, since the scale is a power of two; clipping after unscaling sees the same."""
    found = []
    for scaler in (None, GradScaler("cpu", init_scale=2.0**12), GradScaler("cpu", enabled=False)):
        net = Net(validate=validate)
        if bayes:
            net.bayes()
        found.append(net.train(scaler, clip=0.05))
    for weights in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], weights, strict=True))


@pytest.mark.parametrize("bayes", [False, True])
def test_small_gradients_of_float16_features_survive(bayes) -> None:
    """They are scaled in float32 before they are rounded, or they would be zero."""
    net = Net()
    if bayes:
        net.bayes()
    h = net.features(0).detach()
    y = {"r": (net.targets(0)["r"], None, torch.full((16, 2), 1e-7))}
    exact, low, scaled = h.half().float(), h.half(), h.half()
    for leaf in (exact, low, scaled):
        leaf.requires_grad_()
    net.mtl.backward(exact, y, collect=False)
    net.mtl.backward(low, y, collect=False)
    net.mtl.backward(scaled, y, collect=False, scaler=GradScaler("cpu", init_scale=2.0**16))
    assert not low.grad.any()
    torch.testing.assert_close(scaled.grad.float() / 2**16, exact.grad, rtol=2e-3, atol=1e-10)


@pytest.mark.parametrize("validate", ["now", "deferred"])
@pytest.mark.parametrize("bayes", [False, True])
def test_an_overflow_skips_the_step_and_the_batch_counts_once(bayes, validate) -> None:
    net, twin = Net(validate=validate), Net(validate=validate)
    if bayes:
        net.bayes()
        twin.bayes()
    before = [weight.detach().clone() for weight in net.weights]
    means = [prior.mean.clone() for prior in net.mtl.priors().values()] if bayes else []
    scaler = GradScaler("cpu", init_scale=2.0**20)
    with torch.autocast("cpu", torch.float16):
        h = net.features(0)
    assert h.dtype == torch.float16
    net.mtl.backward(h, net.targets(0), scaler=scaler)
    assert not all(w.grad.isfinite().all() for w in net.backbone.parameters())
    scaler.step(net.optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**19
    assert all(torch.equal(a, b) for a, b in zip(before, net.weights, strict=True))
    if bayes:
        now = net.mtl.priors().values()
        assert all(torch.equal(a, b.mean) for a, b in zip(means, now, strict=True))
    # What is collected is that of the batch without any scaler.
    with torch.autocast("cpu", torch.float16):
        twin.mtl.collect(twin.features(0).detach(), twin.targets(0))
    net.mtl.update_prior()
    twin.mtl.update_prior()
    for name, prior in net.mtl.priors().items():
        assert prior.mean.isfinite().all()
        assert torch.equal(prior.mean, twin.mtl.priors()[name].mean)


@pytest.mark.parametrize("bayes", [False, True])
def test_without_a_scaler_an_overflow_is_refused(bayes) -> None:
    net = Net(prior=priors.FullData(1.0))
    net.mtl.collect(net.features(0).detach(), net.targets(0))  # of which units are chosen
    if bayes:
        net.bayes()
    h = net.features(0).detach().half().requires_grad_()
    with pytest.raises(errors.NonFiniteError, match=r"overflows torch\.float16"):
        net.mtl.backward(h, {"r": net.targets(0)["r"] * 1e7})
    assert h.grad is None
    net.mtl.backward(h, {"r": net.targets(0)["r"] * 1e7}, scaler=GradScaler("cpu", init_scale=1.0))
    assert h.grad.isinf().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_training_under_autocast(dtype) -> None:
    """The loop of the documentation brings the losses down as in full precision."""
    ends = []
    for enabled in (False, True):
        net, scaler = Net(warmup_epochs=1), GradScaler("cpu", enabled=enabled)
        for step in range(40):
            net.optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=enabled):
                losses = net.mtl.backward(net.features(step), net.targets(step), scaler=scaler)
            scaler.unscale_(net.optimizer)
            nn.utils.clip_grad_norm_(net.weights, 1.0)
            scaler.step(net.optimizer)
            scaler.update()
            if step % 4 == 3:
                net.mtl.update_prior()
        ends.append(float(sum(loss.sum() for loss in losses.values())))
    assert ends[1] == pytest.approx(ends[0], rel=0.1)


def test_what_is_no_scaler_is_refused() -> None:
    net = Net()
    with pytest.raises(errors.DtypeError, match=r"torch\.amp\.GradScaler, not float"):
        net.mtl.backward(net.features(0), net.targets(0), scaler=2.0)
    assert all(weight.grad is None for weight in net.weights)
