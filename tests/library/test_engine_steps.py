"""What one step of the engine does to `.grad`, against hand-written sums."""

from __future__ import annotations

import pytest
import torch
from engines import POWERS, Toy
from oracles import close, moments, posterior, precision_weights

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, priors


def dense_direction(toy: Toy, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, weights α and direction [B, d] of a step, from the priors in force."""
    x, y = toy.batch(rows)
    h = toy.backbone(x)
    means, variances, powers = [], [], []
    for name, head in toy.heads.items():
        prior = toy.mtl.priors()[name]
        design = h.detach()
        if head.bias:
            design = torch.cat([design, torch.ones(len(design), 1, dtype=h.dtype)], 1)
        tau = head.noise_scale.expand(head.tasks).tolist()
        covariance = prior.covariance_matrix.expand(head.tasks, -1, -1)
        m, s = posterior(design, y[name], tau, prior.mean, covariance)
        mean, cov = moments(m, s, design, y[name], 5)
        means.append(mean)
        variances.append(cov.diagonal(dim1=-2, dim2=-1))
        powers += [POWERS[name]] * head.tasks
    alpha = precision_weights(torch.cat(variances), powers)
    return h, alpha, (alpha * torch.cat(means)).sum(0)


def test_warmup_gradient_is_that_of_the_summed_losses(rng) -> None:
    toy = Toy(rng)
    losses = toy.step(slice(0, 16))
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x)
    total, expected = 0.0, {}
    for name, head in toy.heads.items():
        w = head.weight[:, :5]
        f = h @ w.T + (head.weight[:, 5] if head.bias else 0.0)
        expected[name] = ((y[name] - f) ** 2).mean(0)
        total = total + expected[name].sum()
    variables = [*toy.backbone.parameters(), *(head.weight for head in toy.heads.values())]
    for p, g in zip(variables, torch.autograd.grad(total, variables), strict=True):
        close(p.grad, g)
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        close(loss, expected[name].detach())
        assert not loss.requires_grad


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1.0), ("sum", 5.0)])
def test_bayesian_update_equals_the_dense_stages(rng, reduction, factor) -> None:
    toy = Toy(rng, reduction=reduction).bayes()
    rows = slice(16, 24)
    h, alpha, direction = dense_direction(toy, rows)
    h.backward(direction * factor / 8)
    expected = toy.grads()
    toy.clear()
    toy.step(rows)
    for got, wanted in zip(toy.grads(), expected, strict=True):
        close(got, wanted)
    assert toy.mtl.info.update_factor == factor
    close(toy.mtl.info.weights, alpha.mean((1, 2)))
    close(toy.mtl.info.effective_tasks, (1 / alpha.square().sum(0)).mean())


def test_bayesian_update_equals_the_composed_stages(rng) -> None:
    """The public stages by hand, as the documentation shows them."""
    toy = Toy(rng).bayes()
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x)
    parts = {}
    for name, head in toy.heads.items():
        p = inference.Conjugate().infer(head, h, y[name], toy.mtl.priors()[name])
        parts[name] = gradients.distribution(head, p, h, y[name])
    direction = aggregation.PrecisionWeighted.paper(POWERS)(gradients.cat(parts))
    h.backward(direction / 16)
    expected = toy.grads()
    toy.clear()
    toy.step(slice(0, 16))
    for got, wanted in zip(toy.grads(), expected, strict=True):
        close(got, wanted)


def test_sum_rule_under_scale_mean_is_the_mean_rule(rng) -> None:
    updates = []
    for rule, reduction in (
        (aggregation.Sum(), "mean"),
        (aggregation.Mean(), "mean"),
        (aggregation.Sum(), "sum"),
        (aggregation.Mean(), "sum"),
    ):
        torch.manual_seed(0)
        toy = Toy(torch.Generator().manual_seed(1), aggregation=rule, reduction=reduction).bayes()
        toy.step(slice(0, 16))
        updates.append(toy.grads()[0])
    close(updates[0], updates[1])
    close(updates[2], updates[3])
    close(updates[2], updates[0] * 5)


@pytest.mark.parametrize("bayes", [False, True])
def test_gradients_are_added(rng, bayes) -> None:
    toy = Toy(rng)
    if bayes:
        toy.bayes()
    singles = []
    for rows in toy.batches:
        toy.clear()
        toy.step(rows)
        singles.append(toy.grads())
    toy.clear()
    for rows in toy.batches:
        toy.step(rows)
    for both, one, two in zip(toy.grads(), *singles, strict=True):
        close(both, one + two)


def test_warmup_accumulates_half_batches_to_the_whole(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    whole = [*toy.grads(), *(h.weight.grad.clone() for h in toy.heads.values())]
    toy.clear()
    for rows in (slice(0, 8), slice(8, 16)):
        toy.step(rows)
    halves = [*toy.grads(), *(h.weight.grad for h in toy.heads.values())]
    for got, wanted in zip(halves, whole, strict=True):
        close(got / 2, wanted)


def test_conjugate_heads_are_not_learned_by_gradient(rng) -> None:
    toy = Toy(rng)
    toy.step(slice(0, 16))
    assert all(head.weight.grad is not None for head in toy.heads.values())  # warm-up
    toy.bayes()
    weights = [head.weight.detach().clone() for head in toy.heads.values()]
    optimizer = torch.optim.Adam([*toy.backbone.parameters(), *toy.mtl.parameters()], lr=0.1)
    toy.step(slice(0, 16))
    optimizer.step()
    for head, before in zip(toy.heads.values(), weights, strict=True):
        assert head.weight.grad is None
        assert torch.equal(head.weight, before)


def test_bayesian_losses_are_those_of_the_prediction(rng) -> None:
    toy = Toy(rng).bayes()
    x, y = toy.batch(slice(0, 16))
    predicted = toy.mtl.predict(toy.backbone(x))
    losses = toy.step(slice(0, 16))
    for name in toy.heads:
        close(losses[name], (y[name] - predicted[name]).square().mean(0).detach())
    assert toy.mtl.info.losses is losses


def test_info_says_what_happened(rng) -> None:
    toy = Toy(rng)
    assert toy.mtl.info is None
    toy.step(slice(0, 16))
    info = toy.mtl.info
    assert not info.bayesian
    assert info.weights is None
    assert info.effective_tasks is None
    toy.bayes()
    toy.step(slice(0, 16))
    info = toy.mtl.info
    assert info.bayesian
    assert info.weights.shape == (5,)
    close(info.weights.sum(), torch.tensor(1.0).double())
    assert 1 <= info.effective_tasks <= 5
    assert info.jitter.keys() == info.condition.keys() == toy.heads.keys()
    assert all((jitter == 0).all() for jitter in info.jitter.values())
    assert all((condition >= 1).all() for condition in info.condition.values())
    assert info.gradients is None
    assert info.aggregated is None


def test_gradients_are_kept_on_request(rng) -> None:
    toy = Toy(rng, keep_gradients=True).bayes()
    _, alpha, direction = dense_direction(toy, slice(0, 16))
    toy.step(slice(0, 16))
    info = toy.mtl.info
    assert info.gradients.groups == {"energy": slice(0, 2), "other": slice(2, 5)}
    close(info.aggregated.weights, alpha)
    close(info.aggregated.direction, direction)


def test_a_sampled_estimator_approaches_the_exact_update(rng) -> None:
    # The direction is smooth in the moments, so few per cent of error remain.
    torch.manual_seed(0)
    exact = Toy(torch.Generator().manual_seed(1)).bayes()
    exact.step(slice(0, 16))
    torch.manual_seed(0)
    mc = gradients.MonteCarlo(4096)
    sampled = Toy(torch.Generator().manual_seed(1), estimator={"other": mc}, generator=rng).bayes()
    sampled.step(slice(0, 16))
    for got, wanted in zip(sampled.grads(), exact.grads(), strict=True):
        assert (got - wanted).norm() < 0.1 * wanted.norm()
        assert not torch.equal(got, wanted)


def test_the_graph_is_freed_and_features_may_be_a_leaf(rng) -> None:
    toy = Toy(rng).bayes()
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x).detach().requires_grad_()
    toy.mtl.backward(h, y)
    _, _, direction = dense_direction(toy, slice(0, 16))
    close(h.grad, direction / 16)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_the_scale_of_the_losses_does_not_stop_learning(rng, factor) -> None:
    """Targets × 1e3 are losses × 1e6. Noise and prior in the same units: the same fit."""
    toy = Toy(rng, dtype=torch.float32)
    toy.y = {name: y * factor for name, y in toy.y.items()}
    toy.heads = {
        name: heads.Gaussian(5, tasks=y.shape[1], noise_scale=0.3 * factor)
        for name, y in toy.y.items()
    }
    toy.mtl = ba.BayesAgg(
        toy.heads,
        aggregation.PrecisionWeighted.paper(0.5),
        prior=priors.FullData(variance=factor**2),
        reduction="sum",
    )
    optimizer = torch.optim.Adam(toy.backbone.parameters(), lr=0.02)
    toy.bayes()  # without training first
    for _ in range(40):
        for rows in toy.batches:
            optimizer.zero_grad()
            toy.step(rows)
            optimizer.step()
        toy.mtl.update_prior()
    predicted = toy.mtl.predict(toy.backbone(toy.x))
    for name, y in toy.y.items():
        assert ((y - predicted[name]).square().mean(0) < 0.15 * y.var(0)).all()
