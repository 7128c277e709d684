"""Engine steps with classification heads, alone and mixed, against loops."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from dense import F64, Task, close, newton, normal
from test_quadrature import by_trapezoid
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors
from bayesagg_pyro.inference import Keep

NAN = float("nan")


class World:
    """Four kinds of heads on one network, with data of 20 examples."""

    def __init__(self, rng: torch.Generator, order: tuple[str, ...] | None = None, **settings):
        self.backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
        self.x = normal(rng, 20, 4)
        with torch.no_grad():
            for p in self.backbone.parameters():
                p.copy_(normal(rng, *p.shape))
        self.y = {
            "age": normal(rng, 20, 2),
            "sick": (torch.rand(20, 3, generator=rng) < 0.4).double(),
            "side": torch.randint(0, 2, (20,), generator=rng),
            "kind": torch.randint(0, 3, (20, 2), generator=rng),
        }
        made = {
            "age": heads.Gaussian(5, 2, noise_scale=[0.5, 1.0]),
            "sick": heads.Bernoulli(5, 3, pos_weight=[1.0, 2.0, 0.5]),
            "side": heads.Categorical(5, 2),
            "kind": heads.Categorical(5, 3, tasks=2, class_weight=[1.0, 0.5, 2.0]),
        }
        start = {name: normal(rng, *head.weight.shape) for name, head in made.items()}
        order = order or tuple(made)
        self.heads = {name: made[name].double() for name in order}
        with torch.no_grad():
            for name, head in self.heads.items():
                head.weight.copy_(0.5 * start[name])
        self.powers = {"age": 0.8, "sick": 0.3, "side": 0.1, "kind": 0.05}
        settings.setdefault(
            "estimator",
            {"kind": gradients.Conditional(64, generator=torch.Generator().manual_seed(7))},
        )
        self.mtl = ba.BayesAgg(
            self.heads,
            aggregation.PrecisionWeighted({name: self.powers[name] for name in order}),
            prior=priors.FullData(0.5),
            **settings,
        ).double()

    def targets(self):
        return {name: self.y[name] for name in self.heads}

    def bayes(self) -> World:
        self.mtl.collect(self.backbone(self.x), self.targets())
        self.mtl.update_prior()
        self.mtl.start_bayes()
        return self

    def step(self, targets=None) -> dict[str, torch.Tensor]:
        return self.mtl.backward(self.backbone(self.x), targets or self.targets())

    def updates(self) -> dict[str, torch.Tensor]:
        found = {f"backbone {k}": p.grad for k, p in self.backbone.named_parameters()}
        heads_ = {name: head.weight.grad for name, head in self.heads.items()}
        return {k: g.clone() for k, g in {**found, **heads_}.items() if g is not None}


def make(seed: int = 1234, **settings) -> World:
    return World(torch.Generator().manual_seed(seed), **settings)


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
    """They take turns at it, so another order is another draw: equal up to the sampling error."""
    x, y = normal(rng, 20, 5), torch.randint(0, 3, (20, 2), generator=rng)
    start = normal(rng, 2, 3, 6)
    found = []
    for order in (("a", "b"), ("b", "a"), ("a", "b")):
        made = {name: heads.Categorical(5, 3).double() for name in order}
        with torch.no_grad():
            made["a"].weight.copy_(start[0])
            made["b"].weight.copy_(start[1])
        mtl = ba.BayesAgg(made, generator=torch.Generator().manual_seed(2)).double()
        targets = {"a": y[:, 0], "b": y[:, 1]}
        mtl.collect(x, targets)
        mtl.update_prior()
        mtl.start_bayes()
        h = x.clone().requires_grad_()
        mtl.backward(h, targets)
        found.append(h.grad)
    assert torch.equal(found[0], found[2])
    assert (found[0] - found[1]).norm() < 0.05 * found[0].norm()


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
    rule = aggregation.PrecisionWeighted(power)
    mtl = ba.BayesAgg({"a": head}, rule, prior=priors.FullData(0.5)).double()
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


POISON = {"sick": [0.0, NAN, 1e30, -7.0], "side": [0, 1, 99, -1], "kind": [0, 2, 99, -1]}


@pytest.mark.parametrize("which", ["sick", "side", "kind"])
@pytest.mark.parametrize("bayes", [False, True])
def test_what_stands_in_a_hole_does_not_matter(which, bayes) -> None:
    """Whatever the values under a mask are, legal or not; and (for binary) NaN says the same."""
    found = []
    for filler in POISON[which]:
        w = make(validate="now")
        observed = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) < 0.6
        y = w.y[which].reshape(20, -1)
        mask = observed[:, : y.shape[1]]
        y = torch.where(mask, y, torch.full_like(y, filler))
        w.y[which] = (y, mask)
        if bayes:
            w.bayes()
        w.step()
        found.append(w.updates())
    if which == "sick":
        w = make()
        w.heads["sick"].missing = "nan"
        w.y["sick"] = y.where(mask, torch.tensor(NAN).double())
        if bayes:
            w.bayes()
        w.step()
        found.append(w.updates())
    for other in found[1:]:
        for name, value in found[0].items():
            close(other[name], value, 1e-12)


@pytest.mark.parametrize("which", ["age", "sick", "side", "kind"])
def test_missing_targets_leave_no_trace(which) -> None:
    """No gradient, no aggregation weight, a posterior and a loss of the observed rows alone."""
    w = make(keep_gradients=True)
    rows = torch.arange(20) % 3 != 0
    full = w.y[which].reshape(20, -1)
    w.y[which] = (full, rows[:, None].expand_as(full).contiguous())
    w.bayes()
    losses = w.step()
    part = w.mtl.info.gradients.groups[which]
    assert (w.mtl.info.gradients.mean[part][:, ~rows] == 0).all()
    assert (w.mtl.info.gradients.variance[part][:, ~rows] == 0).all()
    assert (w.mtl.info.aggregated.weights[part][:, ~rows] == 0).all()
    head, scheme = w.heads[which], w.mtl.schemes[which]
    h = w.backbone(w.x).detach()[rows]
    own = scheme.infer(head, h, full[rows], priors.isotropic(head, 0.5))
    close(w.mtl.priors()[which].mean, own.mean)
    outputs = head(h) if scheme.needs_point else head(h, own.mean)
    close(losses[which], head.loss(outputs, full[rows]).mean(0).detach())
    if scheme.needs_point:
        loss = head.loss(head(h), full[rows]).mean(0).sum()
        close(head.weight.grad, torch.autograd.grad(loss, head.weight)[0])


@pytest.mark.parametrize("bayes", [False, True])
def test_a_batch_without_any_label_moves_nothing(bayes) -> None:
    w = make()
    if bayes:
        w.bayes()
    empty = {
        name: (y.reshape(20, -1), torch.zeros_like(y.reshape(20, -1), dtype=torch.bool))
        for name, y in w.y.items()
    }
    losses = w.step(empty)
    for loss in losses.values():
        assert (loss == 0).all()
    for gradient in w.updates().values():
        assert (gradient == 0).all()


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
        assert isinstance(gradients._dispatch._default(w.heads[name], p), kind)


def test_predictions_have_the_documented_shapes() -> None:
    w = make().bayes()
    h = w.backbone(w.x)
    shapes = {name: tuple(out.shape) for name, out in w.mtl.predict(h).items()}
    assert shapes == {"age": (20, 2), "sick": (20, 3), "side": (20, 2), "kind": (20, 2, 3)}
    for name, p in w.mtl.predictive(h).items():
        assert p.batch_shape == (20, w.heads[name].tasks)
        assert p.log_prob(w.y[name].reshape(20, -1)).isfinite().all()
    close(w.mtl.predict(h)["sick"], w.heads["sick"](h))  # the learned point, not the posterior's


BAD = [
    ("side", lambda y: y + 1, errors.SettingError, "2; classes are 0 to 1"),
    ("kind", lambda y: y - 1, errors.SettingError, "-1; classes are 0 to 2"),
    ("kind", lambda y: y.double(), errors.DtypeError, r"long\(\)"),
    ("kind", lambda y: y > 0, errors.DtypeError, "class indices"),
    ("kind", lambda y: y[:, :1], errors.ShapeError, r"\[20, 2\]"),
    ("side", lambda y: torch.nn.functional.one_hot(y, 2), errors.ShapeError, r"\[20, 1\]"),
    ("sick", lambda y: y * 0.5, errors.SettingError, "0 or 1"),
    ("sick", lambda y: y - 1, errors.SettingError, "-1"),
    ("sick", lambda y: y * NAN, errors.NonFiniteError, "missing='nan'"),
    ("sick", lambda y: y + float("inf"), errors.NonFiniteError, "inf"),
    ("sick", lambda y: y + 0j, errors.DtypeError, "complex"),
    ("kind", lambda y: y + 0j, errors.DtypeError, "complex"),
    ("sick", lambda y: (y, y), errors.DtypeError, "bool"),
    ("sick", lambda y: (y, (y > 0)[:, :2]), errors.ShapeError, "mask"),
    ("kind", lambda y: (y, (y > 0)[:19]), errors.ShapeError, "mask"),
    ("kind", lambda y: (y, torch.ones(20)), errors.ShapeError, "mask"),
    ("side", lambda y: (y, torch.ones(20)), errors.DtypeError, "bool"),
    ("kind", lambda y: (y, None, torch.full((20,), -1.0)), errors.SettingError, "weight"),
    ("kind", lambda y: (y, None, torch.full((20,), NAN)), errors.NonFiniteError, "weight"),
    ("kind", lambda y: (y, None, torch.ones(20, 3)), errors.ShapeError, "weight"),
]


@pytest.mark.parametrize(("name", "change", "error", "words"), BAD)
@pytest.mark.parametrize("bayes", [False, True])
def test_bad_targets_change_nothing(name, change, error, words, bayes) -> None:
    w = make()
    if bayes:
        w.bayes()
    before = {k: v.clone() for k, v in w.mtl.state_dict().items() if torch.is_tensor(v)}
    bad = {**w.targets(), name: change(w.y[name])}
    with pytest.raises(error, match=f"{name}.*{words}"):
        w.step(bad)
    assert w.updates() == {}
    assert w.mtl.info is None
    with pytest.raises(errors.StateError, match="nothing has been collected"):
        w.mtl.update_prior()
    for k, v in w.mtl.state_dict().items():
        if torch.is_tensor(v):
            assert torch.equal(v, before[k])


@pytest.mark.parametrize("bad", ["label", "half", "weight"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("call", ["backward", "collect"])
def test_deferred_validation_of_classes(rng, bad, streaming, call) -> None:
    """Out-of-range labels never reach an index; the priors leave the batch out."""

    def engine() -> ba.BayesAgg:
        torch.manual_seed(0)
        return ba.BayesAgg(
            {"kind": heads.Categorical(4, 3), "sick": heads.Bernoulli(4)},
            validate="deferred",
            prior=priors.FullData(keep=Keep(streaming=streaming)),
        ).double()

    h, y = normal(rng, 8, 4), torch.randint(0, 3, (8,), generator=rng)
    good = {"kind": y, "sick": (y > 1).double()}
    clean, mtl = engine(), engine()
    for m in (clean, mtl):
        m.collect(h, good)
    clean.update_prior()
    spoilt = dict(good)
    if bad == "label":
        spoilt["kind"] = y + 2
    elif bad == "half":
        spoilt["sick"] = good["sick"] + 0.5
    else:
        spoilt["kind"] = (y, None, torch.full((8,), NAN))
    x = h.clone().requires_grad_()
    getattr(mtl, call)(x, spoilt)
    assert x.grad is None if call == "collect" else (x.grad == 0).all()
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()
    mtl.update_prior()
    for name, prior in mtl.priors().items():
        close(prior.mean, clean.priors()[name].mean)
        close(prior.variance, clean.priors()[name].variance)


@pytest.mark.parametrize("scheme", [inference.TaylorGGN, inference.Laplace])
def test_structures_are_checked_when_the_engine_is_made(scheme) -> None:
    """Not an epoch later, when the first prior is made."""
    with pytest.raises(errors.SettingError, match=r"sick.*'kron'"):
        ba.BayesAgg({"sick": heads.Bernoulli(3, name="sick")}, inference=scheme("kron"))
    with pytest.raises(errors.SettingError, match="structure"):
        scheme("dense")
    with pytest.raises(errors.DtypeError, match="Gaussian"):
        ba.BayesAgg({"sick": heads.Bernoulli(3)}, inference=inference.Conjugate())


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
        aggregation.PrecisionWeighted(0.1),
        scale="sum",
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
