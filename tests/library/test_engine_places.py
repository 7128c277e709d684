"""Devices, precisions, autocast, compiled backbones."""

from __future__ import annotations

import shutil

import pytest
import torch
from engines import Toy
from oracles import close
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads, inference, priors

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


def move(toy: Toy, device: str = "cpu", dtype: torch.dtype = torch.float64) -> None:
    toy.backbone.to(device, dtype)
    toy.mtl.to(device, dtype)
    toy.x = toy.x.to(device, dtype)
    toy.y = {name: y.to(device, dtype) for name, y in toy.y.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_a_moved_engine_goes_on(rng, device) -> None:
    """To another precision in the middle of an epoch: sums and priors stay in float64."""
    torch.manual_seed(0)
    plain = Toy(torch.Generator().manual_seed(1)).bayes()
    torch.manual_seed(0)
    moved = Toy(torch.Generator().manual_seed(1)).bayes()
    for toy in (plain, moved):
        toy.step(slice(0, 16))
        toy.clear()
    move(moved, device, torch.float32)
    for toy in (plain, moved):
        toy.step(slice(16, 24))
        toy.mtl.update_prior()
    for one, two in zip(moved.grads(), plain.grads(), strict=True):
        assert one.dtype == torch.float32
        close(one.cpu().double(), two, 1e-4)
    for name, prior in moved.mtl.priors().items():
        assert prior.mean.dtype == torch.float64
        assert prior.mean.device.type == device
        close(prior.mean.cpu(), plain.mtl.priors()[name].mean, 1e-4)


def test_casting_leaves_the_noise_as_it_was() -> None:
    """0.1 is not a bfloat16; the noise of a model must not depend on the layer's precision."""
    head = heads.Gaussian(3, noise_scale=0.1).to(torch.bfloat16)
    assert head.weight.dtype == torch.bfloat16
    assert head.noise_scale.item() == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("where", ["features", "targets", "mask"])
def test_mixed_devices_are_refused(rng, where) -> None:
    toy = Toy(rng)
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x)
    mask = torch.ones(16, 2, dtype=torch.bool)
    if where == "features":
        h = torch.empty(16, 5, dtype=torch.float64, device="meta", requires_grad=True)
    elif where == "targets":
        y["energy"] = y["energy"].to("meta")
    else:
        y["energy"] = (y["energy"], mask.to("meta"))
    with pytest.raises(errors.DeviceError, match=r"energy.*meta.*cpu.*to\("):
        toy.mtl.backward(h, y)
    assert toy.grads() == []
    with pytest.raises(errors.DeviceError):
        inference.Conjugate().infer(
            toy.heads["energy"],
            h.detach(),
            y["energy"],
            priors.isotropic(toy.heads["energy"], 1.0),
        )


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_reach_the_heads(rng, bayes, dtype) -> None:
    """Inside autocast or not, from the same features the same update, losses and predictions."""
    toy = Toy(rng, dtype=torch.float32)
    if bayes:
        toy.bayes()
    x, y = toy.batch(slice(0, 16))
    outcomes = []
    for enabled in (False, True):
        h = toy.backbone(x).detach().to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses = toy.mtl.backward(h, y)
            predicted = toy.mtl.predict(h)
        outcomes.append([h.grad, *losses.values(), *predicted.values()])
    for one, two in zip(*outcomes, strict=True):
        assert torch.equal(one, two)
        assert one is outcomes[0][0] or one.dtype == torch.float32


def test_bfloat16_features_lose_only_their_own_rounding(rng) -> None:
    """Weights α and direction are computed in at least float32, and rounded once at the end."""
    toy = Toy(rng, dtype=torch.float32).bayes()
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x).detach().to(torch.bfloat16)
    low, high = h.clone().requires_grad_(), h.float().requires_grad_()
    toy.mtl.backward(low, y)
    toy.mtl.backward(high, y)
    assert torch.equal(low.grad, high.grad.to(torch.bfloat16))


def test_float16_features_with_tiny_variances(rng) -> None:
    """Variances of 1e-8 do not exist in float16; taken as zero, they would decide the weights."""
    toy = Toy(rng, dtype=torch.float32).bayes()
    for _ in range(300):  # a tight prior
        toy.mtl.collect(toy.backbone(toy.x).detach(), toy.y)
    toy.mtl.update_prior()
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x).detach().half()
    low, high = h.clone().requires_grad_(), h.float().requires_grad_()
    toy.mtl.backward(low, y)
    toy.mtl.backward(high, y)
    assert torch.equal(low.grad, high.grad.half())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_backbone_takes_the_same_step(backend, monkeypatch) -> None:
    if backend == "inductor":
        if shutil.which("c++") is None:
            pytest.skip("inductor needs a C++ compiler")
        from torch._inductor import config

        # Or it compiles a program for each of the processor's vector instructions, to try them.
        monkeypatch.setattr(config.cpp, "vec_isa_ok", False)
    grads = []
    for compiled in (False, True):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        mtl = ba.BayesAgg(
            {"a": heads.Gaussian(3, tasks=2)}, aggregation.PrecisionWeighted.paper(0.8)
        )
        x, y = torch.randn(16, 4), torch.randn(16, 2)
        run = torch.compile(backbone, backend=backend) if compiled else backbone
        mtl.backward(run(x), {"a": y})
        mtl.update_prior()
        mtl.start_bayes()
        backbone.zero_grad()
        mtl.backward(run(x), {"a": y})
        assert backbone[1].num_batches_tracked == 2
        grads.append([p.grad for p in backbone.parameters()] + [backbone[1].running_var])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
