"""Several backward passes over a batch or its graph; graphs of checkpoints and compilers."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest
import torch
from engines import Toy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors

SETTINGS: dict[str, Any] = {
    "closed forms": dict,
    "running": lambda: {"prior": priors.Running(40.0)},
    "previous": lambda: {"prior": priors.PreviousBatch()},
    "held": lambda: {"inference": inference.Ensemble(4, refresh=3)},
    "sampled": lambda: {
        "inference": inference.Ensemble(4, refresh=2),
        "estimator": gradients.MonteCarlo(8),
        "generator": torch.Generator().manual_seed(4),
        "aggregation": aggregation.PerSample(aggregation.Mean(), samples=2),
    },
    "own generators": lambda: {
        "inference": inference.Ensemble(40, refresh=1, generator=torch.Generator().manual_seed(5)),
        "estimator": gradients.PlugIn(
            gradients.MonteCarlo(8, generator=torch.Generator().manual_seed(6))
        ),
    },
}


def made(kind: str, rng: torch.Generator) -> Toy:
    torch.manual_seed(0)
    settings = SETTINGS[kind]()
    return Toy(rng, **settings).bayes()


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_uncounted_pass_is_the_counted_one_and_leaves_no_trace(kind, rng) -> None:
    """Before a counted pass it has the same gradients, losses and info, and changes nothing."""
    toy, states, grads, losses = made(kind, rng), [], [], []
    toy.step(toy.batches[0])  # a posterior is held
    for collect in (False, False, True):
        states.append({k: v.clone() for k, v in toy.mtl.state_dict().items()})
        toy.clear()
        x, y = toy.batch(toy.batches[0])
        losses.append(toy.mtl.backward(toy.backbone(x), y, collect=collect))
        grads.append([*toy.grads(), *(w.grad for w in toy.mtl.parameters() if w.grad is not None)])
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name
        assert torch.equal(states[2][name], value), name
    for found in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], found, strict=True))
    for found in losses[1:]:
        assert all(torch.equal(losses[0][name], found[name]) for name in found)
    assert any(not torch.equal(v, states[0][k]) for k, v in toy.mtl.state_dict().items())


def test_uncounted_passes_do_not_age_posteriors(rng) -> None:
    toy = made("held", rng)
    seen = []
    for step in range(4):
        for collect in (True, False, False):
            x, y = toy.batch(toy.batches[step % 2])
            toy.mtl.backward(toy.backbone(x), y, collect=collect)
            seen.append(toy.mtl.info.inferred["energy"])
    assert seen[::3] == [
        True,
        False,
        False,
        True,
    ]  # every third step, however often it is looked at


def test_the_observer_is_told_about_steps_alone(rng) -> None:
    toy, told = made("closed forms", rng), []

    class Observer:
        def wants(self) -> bool:
            return False

        def passed(self, info) -> None:
            told.append(info)

    toy.mtl.observer = Observer()
    x, y = toy.batch(toy.batches[0])
    for collect in (True, False):
        toy.mtl.backward(toy.backbone(x), y, collect=collect)
    assert len(told) == 1
    assert toy.mtl.info is not told[0]


# -- further losses on the same graph ------------------------------------------------------------


@pytest.mark.parametrize("first", ["engine", "loss"])
@pytest.mark.parametrize("bayes", [False, True])
def test_a_further_loss_on_the_graph_adds_its_gradient(rng, bayes, first) -> None:
    toy = Toy(rng)
    if bayes:
        toy.bayes()
    x, y = toy.batch(toy.batches[0])

    def penalty(h: Tensor) -> Tensor:
        return h.square().mean()

    toy.mtl.backward(toy.backbone(x), y, collect=False)
    penalty(toy.backbone(x)).backward()
    apart = toy.grads()
    toy.clear()
    h = toy.backbone(x)
    if first == "engine":
        toy.mtl.backward(h, y, retain_graph=True)
        penalty(h).backward()
    else:
        penalty(h).backward(retain_graph=True)
        toy.mtl.backward(h, y)
    for one, two in zip(apart, toy.grads(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
    with pytest.raises(errors.StateError, match="retain_graph=True"):
        toy.mtl.backward(h, y)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("bayes", [False, True])
def test_checkpointed_activations(bayes, reentrant) -> None:
    """With dropout, whose draws are made again; the engine's own draws lie between."""
    grads = []
    for checkpointed in (False, True):
        toy = Toy(torch.Generator().manual_seed(3), estimator=gradients.MonteCarlo(4))
        net = nn.Sequential(toy.backbone[0], nn.Tanh(), nn.Dropout(0.3), toy.backbone[2])
        torch.manual_seed(1)
        for w in [*toy.backbone.parameters(), *toy.mtl.parameters()]:
            nn.init.normal_(w)
        if bayes:
            toy.bayes()
        x, y = toy.batch(toy.batches[0])
        torch.manual_seed(2)
        x.requires_grad_()  # the re-entrant form wants that
        h = checkpoint(net, x, use_reentrant=reentrant) if checkpointed else net(x)
        toy.mtl.backward(h, y)
        grads.append([*toy.grads(), x.grad])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


# -- optimisers that look twice ------------------------------------------------------------------


class SAM(torch.optim.SGD):
    """Sharpness-aware minimisation around SGD (https://arxiv.org/abs/2010.01412)."""

    def step(self, again, rho: float = 0.05) -> None:
        weights = [w for g in self.param_groups for w in g["params"] if w.grad is not None]
        before = [w.detach().clone() for w in weights]
        norm = torch.stack([w.grad.norm() for w in weights]).norm()
        with torch.no_grad():
            for w in weights:
                w.add_(w.grad * (rho / norm))
        self.zero_grad()
        again()
        with torch.no_grad():
            for w, value in zip(weights, before, strict=True):
                w.copy_(value)
        super().step()


def test_sharpness_aware_steps_count_each_batch_once(rng) -> None:
    """The statistics are those of plain passes over the same weights, and the update is SAM's."""
    toy = made("closed forms", rng)
    optimizer = SAM(toy.backbone.parameters(), 0.1)
    x, y = toy.batch(toy.batches[0])
    twin = made("closed forms", rng.manual_seed(rng.initial_seed()))
    twin.backbone.load_state_dict(toy.backbone.state_dict())
    toy.mtl.backward(toy.backbone(x), y)
    at_start = toy.grads()
    optimizer.step(lambda: toy.mtl.backward(toy.backbone(x), y, collect=False))
    start = [w.detach().clone() for w in twin.backbone.parameters()]
    norm = torch.stack([g.norm() for g in at_start]).norm()
    with torch.no_grad():
        for w, g in zip(twin.backbone.parameters(), at_start, strict=True):
            w.add_(g * (0.05 / norm))
    twin.mtl.backward(twin.backbone(x), y, collect=False)
    for w, s, g in zip(toy.backbone.parameters(), start, twin.grads(), strict=True):
        torch.testing.assert_close(w, s - 0.1 * g, rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        for w, s in zip(twin.backbone.parameters(), start, strict=True):
            w.copy_(s)
    twin.mtl.collect(twin.backbone(x), y)
    for engine in (toy.mtl, twin.mtl):
        engine.update_prior()
    for name, prior in toy.mtl.priors().items():
        assert torch.equal(prior.mean, twin.mtl.priors()[name].mean)
        assert torch.equal(prior.precision_matrix, twin.mtl.priors()[name].precision_matrix)


@pytest.mark.parametrize("bayes", [False, True])
def test_lbfgs_counts_each_batch_once(rng, bayes) -> None:
    """In the warm-up its steps are those on the summed losses."""
    toy = Toy(rng)
    if bayes:
        toy.bayes()
    weights = [*toy.backbone.parameters(), *(toy.mtl.parameters() if not bayes else [])]
    x, y = toy.batch(slice(0, 24))
    start = [w.detach().clone() for w in weights]

    def minimise(loss) -> list[Tensor]:
        with torch.no_grad():
            for w, value in zip(weights, start, strict=True):
                w.copy_(value)
        optimizer, found = torch.optim.LBFGS(weights, max_iter=6, line_search_fn="strong_wolfe"), []

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            found.append(value.item())
            return value

        optimizer.step(closure)
        assert len(found) > 3
        assert found[-1] < found[0]
        return [w.detach().clone() for w in weights]

    counted = chain([True], repeat(False))

    def engine() -> Tensor:
        losses = toy.mtl.backward(toy.backbone(x), y, collect=next(counted))
        return torch.cat(list(losses.values())).sum()

    def plain() -> Tensor:
        h = toy.backbone(x)
        total = sum((toy.heads[k](h) - v).square().mean(0).sum() for k, v in y.items())
        total.backward()
        return total

    state = toy.mtl.state_dict()
    ends = minimise(engine)
    if not bayes:
        for one, two in zip(ends, minimise(plain), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        for w, value in zip(weights, start, strict=True):
            w.copy_(value)
    once = Toy(rng).mtl
    once.load_state_dict(state)
    once.collect(toy.backbone(x), y)
    once.update_prior()
    toy.mtl.update_prior()
    for name, prior in toy.mtl.priors().items():
        assert torch.equal(prior.mean, once.priors()[name].mean)


# -- compiled steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_is_the_step(backend) -> None:
    """The engine's calls stay as they are between the graphs of what is around them."""
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        mtl = ba.BayesAgg({"a": heads.Gaussian(3, tasks=2), "b": heads.Bernoulli(3)})
        optimizer = torch.optim.SGD([*backbone.parameters(), *mtl.parameters()], 0.1)
        x, y = torch.randn(3, 16, 4), torch.randn(3, 16, 2)
        labels = (y[..., :1] > 0).float()

        def step(x, y, b, backbone=backbone, mtl=mtl, optimizer=optimizer):
            losses = mtl.backward(backbone(x), {"a": y, "b": b})
            optimizer.step()
            optimizer.zero_grad()
            return losses

        if compiled:
            with pytest.raises(RuntimeError, match=r"BayesAgg\.backward"):
                torch.compile(step, backend=backend, fullgraph=True)(x[0], y[0], labels[0])
            torch.compiler.reset()
        take = torch.compile(step, backend=backend) if compiled else step
        for epoch in range(2):
            for i in range(3):
                losses = take(x[i], y[i], labels[i])
            mtl.update_prior()
            if epoch == 0:
                mtl.start_bayes()
        assert backbone[1].num_batches_tracked == 6
        ends.append([*backbone.parameters(), *mtl.parameters(), *losses.values()])
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_predictions_compile_into_one_graph(rng) -> None:
    toy = made("closed forms", rng)

    def serve(x: Tensor) -> dict[str, Tensor]:
        return toy.mtl.predict(toy.backbone(x))

    with torch.no_grad():
        compiled = torch.compile(serve, backend="aot_eager", fullgraph=True)(toy.x)
        for name, value in serve(toy.x).items():
            torch.testing.assert_close(compiled[name], value)
