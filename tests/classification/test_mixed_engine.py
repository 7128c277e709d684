"""Engine steps with classification heads, alone and mixed, against loops."""

from __future__ import annotations

from itertools import permutations

import torch
from dense import F64, Task, close, newton, normal
from mixed import make
from torch import nn
from trapezoid import by_trapezoid

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, posteriors, priors


def test_the_order_of_heads_does_not_matter() -> None:
    """Same update to 1e-12; the head that samples has a generator of its own."""
    expected = None
    for order in permutations(("age", "sick", "side", "kind")):
        w = make(order=order).bayes()
        losses = w.step()
        found = {**w.updates(), **losses}
        if expected is None:
            expected = found
        assert found.keys() == expected.keys()
        for name, value in found.items():
            close(value, expected[name], 1e-12)


def test_the_order_of_heads_that_share_a_generator(rng) -> None:
    """Each draws from a stream that the engine derives from its name: the same update to 1e-12."""
    x, y = normal(rng, 20, 5), torch.randint(0, 3, (20, 2), generator=rng)
    start = normal(rng, 2, 3, 6)
    found = []
    for seed, order in ((2, "ab"), (2, "ba"), (2, "a"), (3, "ab")):
        made = {name: heads.Categorical(5, 3).double() for name in order}
        with torch.no_grad():
            for name, head in made.items():
                head.weight.copy_(start["ab".index(name)])
        mtl = ba.BayesAgg(
            made, generator=torch.Generator().manual_seed(seed), keep_gradients=True
        ).double()
        targets = {name: y[:, "ab".index(name)] for name in order}
        mtl.collect(x, targets)
        mtl.update_prior()
        mtl.start_bayes()
        h = x.clone().requires_grad_()
        mtl.backward(h, targets)
        assert mtl.info is not None
        assert mtl.info.gradients is not None
        rows = mtl.info.gradients.groups
        found.append((h.grad, mtl.info.gradients.variance[rows["a"]]))
    close(found[0][0], found[1][0], 1e-12)
    for other in found[1:3]:  # nor does it matter who else is there
        assert torch.equal(found[0][1], other[1])
    assert not torch.equal(found[0][1], found[3][1])


def test_points_learn_by_the_mean_loss_and_accumulate() -> None:
    """In the warm-up and after it; Gaussian heads only in the warm-up."""
    w = make()
    for phase in ("warm-up", "bayes"):
        if phase == "bayes":
            w.mtl.update_prior()
            w.mtl.start_bayes()
            w.mtl.zero_grad()
            w.mtl.collect(w.backbone(w.x), w.targets())
        h = w.backbone(w.x).detach()
        expected = {}
        for name, head in w.heads.items():
            loss = head.loss(head(h), w.y[name].reshape(20, -1)).mean(0).sum()
            (expected[name],) = torch.autograd.grad(loss, head.weight)
        for times in (1, 2):
            w.step()
            for name, head in w.heads.items():
                if name == "age" and phase == "bayes":
                    assert head.weight.grad is None
                else:
                    close(head.weight.grad, times * expected[name])


def test_a_bernoulli_step_from_end_to_end(rng) -> None:
    """Newton by autograd, moments by trapezoid, weights λˢ / Σ λˢ, the chain rule at the end."""
    n, d, tasks, power = 9, 3, 2, 0.6
    backbone = nn.Sequential(nn.Linear(2, d), nn.Tanh()).double()
    head = heads.Bernoulli(d, tasks, pos_weight=[0.5, 2.0])
    rule = aggregation.PrecisionWeighted.paper(power)
    mtl = ba.BayesAgg({"a": head}, rule, prior=priors.FullData(0.5), reduction="mean").double()
    x, y = normal(rng, n, 2), (torch.rand(n, tasks, generator=rng) < 0.5).double()
    mask = torch.rand(n, tasks, generator=rng) < 0.8
    weight = 2 * torch.rand(n, tasks, generator=rng, dtype=F64)
    given = (y, mask, weight)
    mtl.backward(backbone(x), {"a": given})
    mtl.update_prior()
    mtl.start_bayes()
    backbone.zero_grad()
    losses = mtl.backward(backbone(x), {"a": given})["a"]

    h = backbone(x)
    t = Task(head, h.detach(), y, mask, weight, torch.tensor([0.5, 2.0], dtype=F64))
    start = priors.isotropic(head, 0.5).to_gaussian()
    moments, variances = [], []
    for k in range(tasks):
        point = head.point()[k]
        m, s = newton(t.potential(start, k), point)
        prior = posteriors.Gaussian(m.expand(tasks, -1), torch.linalg.inv(s).expand(tasks, -1, -1))
        m, s = newton(t.potential(prior, k), point)
        rows, spread = [], []
        for b in range(n):
            u = t.design[b]
            sigma = (u @ s @ u).sqrt()
            e, v = by_trapezoid(u @ m, sigma, y[b, k], m, s @ u / sigma, s.diagonal())
            factor = weight[b, k] * (t.by_target[k] if y[b, k] == 1 else 1.0)
            rows.append(e[:d] * factor)
            spread.append(v[:d] * factor**2)
        moments.append(torch.stack(rows))
        variances.append(torch.stack(spread))
        nll = [-t.log_likelihood(point, k, b) for b in range(n) if mask[b, k]]
        close(losses[k], torch.stack(nll).mean().detach())
    mean, precision = torch.stack(moments), torch.stack(variances) ** -power
    precision = precision * mask.T[..., None]
    alpha = precision / precision.sum(0).clamp(min=1e-300) * mask.double().mean(1)[:, None]
    scale = n / mask.sum(0)
    direction = (alpha * mean * mask.T[..., None] * scale[:, None, None]).sum(0)
    expected = torch.autograd.grad(h, list(backbone.parameters()), direction / n)
    for p, g in zip(backbone.parameters(), expected, strict=True):
        close(p.grad, g, 1e-4)


def test_each_head_has_its_own_scheme_estimator_and_power() -> None:
    """Every head's moments are those of its own choice, computed alone."""
    schemes = {
        "age": inference.Conjugate(),
        "sick": inference.Laplace("diag"),
        "side": inference.TaylorGGN("kron"),
        "kind": inference.TaylorGGN("diag"),
    }
    estimators = {
        "sick": gradients.Quadrature(16),
        "side": gradients.MonteCarlo(50, generator=torch.Generator().manual_seed(1)),
        "kind": gradients.Conditional(64, generator=torch.Generator().manual_seed(2)),
    }
    w = make(inference=schemes, estimator=estimators, keep_gradients=True).bayes()
    for name in ("side", "kind"):
        estimators[name].generator.manual_seed(9)
    w.step()
    joint = w.mtl.info.gradients
    h = w.backbone(w.x).detach()
    for name, head in w.heads.items():
        p = schemes[name].infer(head, h, w.y[name], w.mtl.priors()[name])
        if name in ("side", "kind"):
            estimators[name].generator.manual_seed(9)
        alone = gradients.distribution(head, p, h, w.y[name], estimator=estimators.get(name))
        close(joint.mean[joint.groups[name]], alone.mean)
        close(joint.variance[joint.groups[name]], alone.variance)
    s = torch.cat([torch.full((w.heads[n].tasks,), w.powers[n], dtype=F64) for n in w.heads])
    lam = joint.variance ** -s[:, None, None]
    close(w.mtl.info.aggregated.weights, lam / lam.sum(0), 1e-9)


def test_default_schemes_and_estimators() -> None:
    w = make()
    assert isinstance(w.mtl.schemes["age"], inference.Conjugate)
    for name in ("sick", "side", "kind"):
        assert isinstance(w.mtl.schemes[name], inference.TaylorGGN)
        p = priors.isotropic(w.heads[name], 1.0)
        kind = gradients.Conditional if name == "kind" else gradients.Quadrature
        assert isinstance(gradients._dispatch.default_estimator(w.heads[name], p), kind)


def test_predictions_have_the_documented_shapes() -> None:
    w = make().bayes()
    h = w.backbone(w.x)
    shapes = {name: tuple(out.shape) for name, out in w.mtl.predict(h).items()}
    assert shapes == {"age": (20, 2), "sick": (20, 3), "side": (20, 2), "kind": (20, 2, 3)}
    for name, p in w.mtl.predictive(h).items():
        assert p.batch_shape == (20, w.heads[name].tasks)
        assert p.log_prob(w.y[name].reshape(20, -1)).isfinite().all()
    close(w.mtl.predict(h)["sick"], w.heads["sick"](h))  # the learned point, not the posterior's


def test_a_small_training_learns_all_heads(rng) -> None:
    """Mixed heads on learnable data: losses fall and labels are predicted."""
    torch.manual_seed(1)
    x = normal(rng, 256, 4)
    truth = normal(rng, 4, 5)
    f = x @ truth
    y = {"age": f[:, :1], "sick": (f[:, 1:3] > 0).double(), "kind": f[:, 2:].argmax(1)}
    backbone = nn.Sequential(nn.Linear(4, 24), nn.Tanh()).double()
    mtl = ba.BayesAgg(
        {
            "age": heads.Gaussian(24, 1, bias=True, noise_scale=0.2),
            "sick": heads.Bernoulli(24, 2),
            "kind": heads.Categorical(24, 3),
        },
        aggregation.PrecisionWeighted.paper(0.1),
        reduction="sum",
        warmup_epochs=2,
        generator=rng,
    ).double()
    optimiser = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=1e-2)
    for _ in range(12):
        for rows in torch.randperm(256, generator=rng).split(64):
            optimiser.zero_grad()
            mtl.backward(backbone(x[rows]), {k: v[rows] for k, v in y.items()})
            optimiser.step()
        mtl.update_prior()
    assert not mtl.warmup
    out = mtl.predict(backbone(x))
    assert ((out["sick"] > 0) == y["sick"].bool()).double().mean() > 0.9
    assert (out["kind"].argmax(-1) == y["kind"]).double().mean() > 0.9
    assert (out["age"] - y["age"]).var() < 0.1 * y["age"].var()
