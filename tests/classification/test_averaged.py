"""Large batches: each example's mean, and the average variance from a random share of them."""

from __future__ import annotations

import pytest
import torch
from dense import F64, close, normal

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, inference, posteriors, priors
from bayesagg_pyro.gradients import Conditional
from bayesagg_pyro.gradients import _conditional as conditional
from bayesagg_pyro.gradients import _law_of as laws
from bayesagg_pyro.gradients._interpolated_law import interpolated_law
from bayesagg_pyro.gradients._logit_laws import independent_law
from bayesagg_pyro.gradients._points import Points, _sobol
from bayesagg_pyro.targets import Targets

ROWS = 128


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Counting(Conditional):
    """How often a mean alone was asked for."""

    means = 0

    def mean(self, *args):
        self.means += 1
        return super().mean(*args)


def large(rng, structure: str, tasks: int = 1, batch: int = 400):
    """A head, a posterior of 60 examples, and many more examples of very different size."""
    head = heads.Categorical(4, 3, tasks=tasks).double()
    h = normal(rng, batch, 4) * (0.1 + 2 * torch.rand(batch, 1, generator=rng, dtype=F64))
    y = torch.randint(0, 3, (batch, tasks), generator=rng)
    scheme = inference.TaylorGGN(structure)
    return head, scheme.infer(head, h[:60], y[:60], priors.isotropic(head, 1.0)), h, y


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_means_are_each_example_s_and_the_variance_is_the_average(rng, structure, tasks) -> None:
    head, posterior, h, y = large(rng, structure, tasks)
    estimator = Conditional(256, average_rows=ROWS)
    whole = gradients.distribution(head, posterior, h, y, estimator=Conditional(256))
    average = whole.variance.mean(1, keepdim=True)
    off = []
    for seed in range(20):
        found = gradients.distribution(
            head, posterior, h, y, estimator=estimator, generator=seeded(seed), average=True
        )
        assert found.variance.shape == found.mean.shape
        assert torch.equal(found.variance, found.variance[:, :1].expand_as(found.mean))
        off.append((found.variance[:, :1] - average) / average)
    error = (found.mean - whole.mean) / whole.variance.sqrt()
    assert error.abs().max() < 0.15
    off = torch.stack(off)
    stated = found.moment_error
    expected = (stated.variance[:, :1] / found.variance[:, :1]).mean()
    assert off.mean(0).abs().max() < 4 * expected / 20**0.5
    # Drawn without replacement, of a batch of three times as many: somewhat less than stated.
    assert 0.4 < off.square().mean().sqrt() / expected < 1.3
    assert ((error / (stated.mean / whole.variance.sqrt())).square().mean().sqrt()) < 2.5


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_the_mean_alone_is_that_of_both_moments(rng, structure) -> None:
    head, posterior, h, y = large(rng, structure, 2)
    estimator = Conditional(64)
    both = estimator.estimate(head, posterior, h, Targets(y), seeded(3))
    alone = estimator.mean(head, posterior, h, Targets(y), seeded(3))
    close(alone, both.mean)
    tolerant = Conditional(64, tolerance=0.1)
    assert tolerant.averaged(head, posterior, h, Targets(y)) is None


def test_missing_and_weighted_examples_are_not_averaged_over(rng) -> None:
    """Those that do not count are drawn last, and weigh nothing."""
    head, posterior, h, y = large(rng, "kron")
    mask = (torch.arange(400) % 4 != 0)[:, None]
    weight = torch.where(torch.arange(400) % 3 == 0, 0.0, 2.0).double()[:, None]
    counts = mask & (weight > 0)
    assert counts.sum() > ROWS
    estimator = Conditional(512, average_rows=ROWS)
    for given, factor in (((y, mask), 1.0), ((y, mask, weight), 2.0)):
        kept = mask if factor == 1 else counts
        found = gradients.distribution(
            head, posterior, h, given, estimator=estimator, generator=seeded(), average=True
        )
        whole = gradients.distribution(head, posterior, h, given, estimator=estimator)
        assert torch.equal(found.observed, kept.mT)
        assert torch.equal(found.observed, whole.observed)
        assert (found.mean[0, ~mask[:, 0]] == 0).all()
        expected = whole.variance[:, kept[:, 0]].mean(1)
        assert ((found.variance[:, 0] / expected - 1).abs() < 0.5).all()
        error = (found.mean - whole.mean)[:, kept[:, 0]]
        assert (error.abs() < 0.2 * factor * whole.variance[:, kept[:, 0]].sqrt()).all()


@pytest.mark.parametrize("why", ["small batch", "several tasks with holes", "switched off"])
def test_where_all_examples_give_their_own_variance(rng, why) -> None:
    head, posterior, h, y = large(rng, "kron", 2)
    estimator = Conditional(64, average_rows=None if why == "switched off" else ROWS)
    given = y
    if why == "small batch":
        h, given = h[: 2 * ROWS], y[: 2 * ROWS]
    if why == "several tasks with holes":
        given = (y, torch.rand(400, 2, generator=rng) < 0.5)
    found, plain = (
        gradients.distribution(
            head, posterior, h, given, estimator=estimator, generator=seeded(), average=average
        )
        for average in (True, False)
    )
    assert torch.equal(found.mean, plain.mean)
    assert torch.equal(found.variance, plain.variance)


@pytest.mark.parametrize("rule", ["task", "dimension", "example", "mean"])
def test_the_engine_averages_where_the_rule_does(rng, rule) -> None:
    """And keeps each example's variance where somebody looks at it."""
    method = (
        aggregation.Mean()
        if rule == "mean"
        else aggregation.PrecisionWeighted(0.5, resolution=rule)
    )
    assert method.variance_per_example is (rule == "example")
    h, y = normal(rng, 600, 4), torch.randint(0, 3, (600, 2), generator=rng)
    updates = {}
    for keep in (False, True):
        own = {n: heads.Categorical(4, 3).double() for n in "ab"}
        for i, head in enumerate(own.values()):
            with torch.no_grad():
                head.weight.copy_(normal(seeded(i), 3, 5))
        estimator = Counting(256, average_rows=ROWS)
        mtl = ba.BayesAgg(own, method, estimator=estimator, generator=seeded(), keep_gradients=keep)
        targets = {"a": y[:, 0], "b": y[:, 1]}
        mtl.collect(h[:100], {n: t[:100] for n, t in targets.items()})
        mtl.update_prior()
        mtl.start_bayes()
        x = h.clone().requires_grad_()
        mtl.backward(x, targets)
        assert bool(estimator.means) is (not keep and rule != "example")
        updates[keep] = x.grad
    apart = (updates[True] - updates[False]).norm() / updates[True].norm()
    assert apart < (1e-6 if rule == "example" else 0.1)


@pytest.mark.parametrize(("samples", "dimension"), [(32, 10), (64, 32), (256, 3)])
def test_pairs_integrate_squares_exactly(samples, dimension) -> None:
    points = Points(dimension, torch.zeros((), dtype=F64), seeded(), sobol=True)
    z = points(samples)
    close(z.mT @ z / samples, torch.eye(dimension, dtype=F64))
    assert (z.mean(0).abs() < 1e-12).all()
    assert points(samples) is z
    few = Points(dimension, torch.zeros((), dtype=F64), seeded(), sobol=True)(dimension)
    assert (few.mean(0).abs() > 1e-3).any()


@pytest.mark.parametrize(("spread", "samples"), [(0.1, 32), (2.0, 64), (10.0, 128)])
def test_wider_logits_get_more_points(rng, spread, samples, monkeypatch) -> None:
    """The default's points follow each example, whose own moments do not depend on the others."""
    asked = []
    monkeypatch.setattr(conditional, "_SMALL", 0)
    made = Points.__call__
    monkeypatch.setattr(Points, "__call__", lambda self, n: asked.append(n) or made(self, n))
    head = heads.Categorical(4, 3, bias=False).double()
    posterior = priors.isotropic(head, 1.0)
    h = normal(rng, 3, 4)
    h = spread * 1.2 * h / h.norm(dim=1, keepdim=True)
    y = torch.zeros(3, 1, dtype=torch.long)
    alone = gradients.distribution(head, posterior, h, y, generator=seeded())
    assert asked == [samples]
    mixed = torch.cat([h[:2], 1e-3 * h[:1], h[2:], 8 * h[:1]])
    among = gradients.distribution(
        head, posterior, mixed, torch.zeros(5, 1, dtype=torch.long), generator=seeded()
    )
    close(among.mean[:, [0, 1, 3]], alone.mean)
    close(among.variance[:, [0, 1, 3]], alone.variance)
    monkeypatch.setattr(conditional, "_SMALL", 2**16)
    asked.clear()
    gradients.distribution(head, posterior, mixed, torch.zeros(5, 1, dtype=torch.long))
    assert len(asked) == 1  # the widest of a small batch decides for all
    assert asked[0] == min(128, 2 * samples)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("classes", [5, 20])
def test_the_default_is_as_good_as_it_says(rng, structure, classes) -> None:
    """1 % of a standard deviation in the mean and 3 % of the variance, over four problems."""
    mean, variance = [], []
    for _ in range(4):
        head = heads.Categorical(8, classes).double()
        h, y = normal(rng, 40, 8), torch.randint(0, classes, (40, 1), generator=rng)
        posterior = inference.TaylorGGN(structure).infer(head, h, y, priors.isotropic(head, 0.3))
        exact = gradients.distribution(head, posterior, h, y, estimator=Conditional(2**12))
        found = gradients.distribution(head, posterior, h, y, generator=rng)
        mean.append((found.mean - exact.mean) / exact.variance.sqrt())
        variance.append(found.variance / exact.variance - 1)
    assert torch.stack(mean).square().mean().sqrt() < 0.01
    assert torch.stack(variance).square().mean().sqrt() < 0.03


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("d", [3, 20])
def test_very_many_classes_have_the_moments_of_few(rng, structure, d, monkeypatch) -> None:
    """Without a matrix of classes and features for each example."""
    head = heads.Categorical(d, 6, tasks=2).double()
    h, y = normal(rng, 30, d), torch.randint(0, 6, (30, 2), generator=rng)
    posterior = inference.TaylorGGN(structure).infer(head, h, y, priors.isotropic(head, 0.5))
    few, mean = (
        getattr(Conditional(4096), how)(head, posterior, h, Targets(y), seeded())
        for how in ("estimate", "mean")
    )
    monkeypatch.setattr(laws, "_MANY", 4)
    found, alone = (
        getattr(Conditional(4096), how)(head, posterior, h, Targets(y), seeded())
        for how in ("estimate", "mean")
    )
    close(alone, found.mean)
    assert ((found.mean - few.mean) / few.variance.sqrt()).abs().max() < 1e-6
    assert ((alone - mean) / few.variance.sqrt()).abs().max() < 1e-6
    assert (found.variance / few.variance - 1).abs().max() < 0.1
    assert (found.variance.mean() / few.variance.mean() - 1).abs() < 0.02


@pytest.mark.parametrize(("condition", "tolerance"), [(1.0, 1e-12), (1e3, 1e-5), (1e6, 3e-4)])
def test_interpolation_in_the_eigenvalues(rng, condition, tolerance) -> None:
    """Standard deviations and gains of every row of weights, from those at 24 nodes."""
    head = heads.Categorical(5, 40, tasks=2).double()
    vectors, _ = torch.linalg.qr(normal(rng, 2, 40, 40))
    values = (condition - 1) * torch.rand(2, 40, generator=rng, dtype=F64) ** 6
    outputs = (vectors * values[:, None]) @ vectors.mT
    root = normal(rng, 1, 6, 6)
    one = torch.ones(2, dtype=F64)
    posterior = posteriors.KroneckerGaussian(
        normal(rng, 2, 240), outputs, root @ root.mT / 6, one, one, outputs_per_task=40
    )
    design = head.design_matrix(normal(rng, 9, 5))
    exact, law = (make(head, posterior, design) for make in (independent_law, interpolated_law))
    assert (law.node_std @ law.shares.mT / exact.std - 1).abs().max() < tolerance
    gains = law.shares[:, None] @ (law.node_variance[:, None] / law.node_std[..., None])
    expected = exact.weight_variance[:, None] / exact.std[..., None]
    assert (gains - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_regressions_have_exact_averages(rng, dtype) -> None:
    """In large batches, without the variance of any example."""
    head = heads.Gaussian(6, 3).to(dtype)
    h, y = normal(rng, 1100, 6).to(dtype), normal(rng, 1100, 3).to(dtype)
    posterior = inference.Conjugate().infer(head, h[:20], y[:20], priors.isotropic(head, 1.0))
    each = gradients.distribution(head, posterior, h, y)
    found = gradients.distribution(head, posterior, h, y, average=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    assert "mean" not in vars(found)
    close(found.averaged(), each.variance.mean(1, keepdim=True), tolerance)
    for shape in ((3, 1, 1), (3, 1, 6), (3, 1100, 1)):
        weights = torch.rand(shape, generator=rng, dtype=F64).to(dtype)
        close(found.combined(weights), each.combined(weights), 3 * tolerance)
    assert torch.equal(found.mean, each.mean)
    few = gradients.distribution(head, posterior, h[:1024], y[:1024], average=True)
    assert "mean" in vars(few)


def test_points_are_the_same_whatever_the_default_precision() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            found.append(_sobol.__wrapped__(16, 7))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(*found)
    assert len(found[0].unique()) == 16 * 7
