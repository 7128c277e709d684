"""Degenerate data: finite, and equal to a dense float64 reference."""

from __future__ import annotations

import itertools

import pytest
import torch
from dense import F64, close, gaussian, minimum, newton, normal
from torch.nn.functional import cross_entropy, logsigmoid

from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

SCHEMES = [inference.TaylorGGN, inference.Laplace]


def total_nll(head, h, y, t):
    """−Σ log p of task t as a function of its weights, vectorised."""
    design = torch.cat([h.to(F64), torch.ones(len(h), 1, dtype=F64)], 1)

    def nll(w):
        if isinstance(head, heads.Bernoulli):
            u = design @ w
            return -torch.where(y[:, t] == 1, logsigmoid(u), logsigmoid(-u)).sum()
        return cross_entropy(design @ w.reshape(head.classes, -1).T, y[:, t], reduction="sum")

    return nll


def check(head, h, y, variance: float = 1.0, tolerance: float = 1e-7) -> None:
    """Both schemes and the default moments."""
    prior = priors.isotropic(head, variance)
    for scheme in SCHEMES:
        p = scheme().infer(head, h, y, prior)
        for t in range(head.tasks):
            nll = total_nll(head, h, y, t)

            def value(w, nll=nll):
                return nll(w) + 0.5 * w @ w / variance

            point = head.point()[t].detach().double()
            if scheme is inference.Laplace:
                assert p.info.converged.all()
                point = minimum(value, point)
            mean, covariance = newton(value, point)
            scale = covariance.diagonal().sqrt()
            assert ((p.mean[t] - mean).abs() < 1e-5 * scale).all()
            error = (p.covariance_matrix[t] - covariance) / torch.outer(scale, scale)
            assert error.abs().max() < tolerance
        grad = gradients.distribution(head, p, h, y)
        assert grad.mean.isfinite().all()
        assert grad.variance.isfinite().all()
        assert (grad.variance >= 0).all()


def binary(rng, n: int = 12, d: int = 3, tasks: int = 2):
    head = heads.Bernoulli(d, tasks).double()
    return head, normal(rng, n, d), (torch.rand(n, tasks, generator=rng) < 0.5).double()


def multi(rng, n: int = 12, d: int = 3, tasks: int = 2, classes: int = 3):
    head = heads.Categorical(d, classes, tasks=tasks).double()
    return head, normal(rng, n, d), torch.randint(0, classes, (n, tasks), generator=rng)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_class_only(rng, label) -> None:
    head, h, y = binary(rng)
    check(head, h, torch.full_like(y, label))
    head, h, y = multi(rng)
    check(head, h, torch.full_like(y, label))


def test_a_class_never_seen(rng) -> None:
    head, h, y = multi(rng, classes=4)
    check(head, h, y.clamp(max=2))


def test_one_task_two_classes(rng) -> None:
    check(*binary(rng, tasks=1))
    check(*multi(rng, tasks=1, classes=2))


def test_one_example_and_fewer_examples_than_features(rng) -> None:
    for n in (1, 4):
        check(*binary(rng, n=n, d=12))
        check(*multi(rng, n=n, d=8))


def test_float32_features_meet_float64_algebra(rng) -> None:
    """The reference at the rounded features; the head's weights are float32 as well."""
    for make in (binary, multi):
        head, h, y = make(rng)
        check(head.float(), h.float(), y)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_logits_of_a_hundred(rng, kind) -> None:
    head, h, y = binary(rng) if kind == "binary" else multi(rng)
    with torch.no_grad():
        head.weight.mul_(100 / head(h).abs().max())
    assert head(h).abs().max() > 99.9
    check(head, h, y, variance=1e4, tolerance=1e-6)


def test_moments_at_logits_of_a_hundred(rng) -> None:
    """Right by 100: the gradient is e⁻¹⁰⁰. Wrong: w of the winner minus w of the label."""
    d = 3
    h = torch.zeros(2, d).double()
    h[:, 0] = 1.0
    head = heads.Bernoulli(d, bias=False).double()
    s = 0.01 * torch.eye(d).double()
    m = torch.tensor([100.0, 1.0, -2.0], dtype=F64)
    found = gradients.distribution(head, gaussian(m[None], s[None]), h, torch.tensor([1.0, 0.0]))
    assert (found.mean[0, 0].abs() < 1e-40).all()  # e⁻¹⁰⁰, not an underflow to 0
    assert (found.mean[0, 0] != 0).all()
    close(found.mean[0, 1], m)
    close(found.variance[0, 1], s.diagonal(), 1e-7)

    head3 = heads.Categorical(d, 3, bias=False).double()
    w = normal(rng, 3, d)
    w[:, 0] = torch.tensor([100.0, 0.0, -100.0])
    p = gaussian(w.reshape(1, -1), 0.01 * torch.eye(9).double()[None], 3)
    for estimator in (gradients.Conditional(256), gradients.MonteCarlo(20_000)):
        found = gradients.distribution(
            head3, p, h, torch.tensor([0, 2]), estimator=estimator, generator=rng
        )
        assert found.mean.isfinite().all()
        assert (found.mean[0, 0].abs() < 1e-30).all()
        exact = isinstance(estimator, gradients.Conditional)
        close(found.mean[0, 1], w[0] - w[2], 2e-3 if exact else 2e-2)
        close(found.variance[0, 1], torch.full((d,), 0.02).double(), 1e-3)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_one_in_ten_thousand(rng, kind) -> None:
    n = 10_001
    head, h, y = binary(rng, n, 2, 1) if kind == "binary" else multi(rng, n, 2, 1)
    y = torch.zeros_like(y)
    y[77] = 1
    check(head, h, y, variance=10.0)


@pytest.mark.parametrize("tasks", [1, 3])
def test_separable_data(rng, tasks) -> None:
    """Far on the wrong side the curvature is gone and the gradient is not.

    TaylorGGN takes a step of thousands, stays finite and says so; Laplace arrives at the optimum
    that the prior makes.
    """
    head, h, _ = binary(rng, 20, 2, tasks)
    y = (h[:, :1] > 0).double().expand(20, tasks).contiguous()
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, 0] = -30.0
    prior = priors.isotropic(head, 1e4)
    taylor = inference.TaylorGGN().infer(head, h, y, prior)
    assert taylor.mean.isfinite().all()
    assert taylor.info.overlong.all()
    assert (taylor.info.newton_decrement > 10).all()
    grad = gradients.distribution(head, taylor, h, y)
    assert grad.mean.isfinite().all()
    assert grad.variance.isfinite().all()
    laplace = inference.Laplace().infer(head, h, y, prior)
    assert laplace.info.converged.all()
    assert laplace.info.overlong is None
    nll = total_nll(head, h, y, 0)

    def value(w):
        return nll(w) + 0.5 * w @ w / 1e4

    # the start does not matter: from the origin LBFGS finds the same optimum
    optimum = minimum(value, torch.zeros(3).double())
    mean, covariance = newton(value, optimum)
    close(laplace.mean[0], mean, 1e-4)
    close(laplace.covariance_matrix[0], covariance, 1e-3)
    with torch.no_grad():
        head.weight.copy_(laplace.weight_mean)
    assert not inference.TaylorGGN().infer(head, h, y, prior).info.overlong.any()


def test_only_the_task_that_overshoots_is_flagged(rng) -> None:
    head, h, y = binary(rng, 20, 2, 2)
    y[:, 0] = (h[:, 0] > 0).double()
    with torch.no_grad():
        head.weight[0] = torch.tensor([-30.0, 0.0, 0.0])
    found = inference.TaylorGGN().infer(head, h, y, priors.isotropic(head, 1e4))
    assert found.info.overlong.tolist() == [True, False]


def test_separable_classes(rng) -> None:
    head, h, _ = multi(rng, 30, 2, 1)
    y = (h[:, 0] > -0.4).long() + (h[:, 0] > 0.4).long()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[30.0, 0, 0], [0, 0, 0], [-30.0, 0, 0]]))
    kron = inference.TaylorGGN("kron", mean_steps=0)
    for scheme in (kron, *map(inference.TaylorGGN, ("full", "kron", "diag"))):
        found = scheme.infer(head, h, y, priors.isotropic(head, 1e4))
        assert found.mean.isfinite().all()
        assert found.variance.isfinite().all()
        # the Kronecker curvature is an average over examples: it is not lost where one is certain
        assert found.info.overlong.item() is (scheme is not kron)
    arrived = inference.Laplace().infer(head, h, y, priors.isotropic(head, 1e4))
    assert arrived.info.converged.all()
    with torch.no_grad():
        head.weight.copy_(arrived.weight_mean)
    assert (head(h).argmax(-1) == y).all()


def test_identical_features_and_duplicated_columns(rng) -> None:
    """A singular Gram matrix; the prior keeps it regular."""
    for make in (binary, multi):
        head, h, y = make(rng)
        h[:, 1] = h[:, 0]
        check(head, h, y, variance=1e3, tolerance=1e-6)
        check(head, h[:1].expand(12, 3).clone(), y, variance=1e3, tolerance=1e-6)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_a_tiny_prior_variance_leaves_the_prior(rng, kind) -> None:
    head, h, y = binary(rng) if kind == "binary" else multi(rng)
    mean = normal(rng, *head.point().shape)
    prior = posteriors.DiagonalGaussian(mean, torch.full_like(mean, 1e14))
    prior = prior.replace(outputs_per_task=head.outputs_per_task)
    for scheme in SCHEMES:
        p = scheme().infer(head, h, y, prior)
        close(p.mean, mean, 1e-9)
        found = gradients.distribution(head, p, h, y)
        for t in range(2):
            x = h.clone().requires_grad_()
            (g,) = torch.autograd.grad(head.loss(head(x, mean), y)[:, t].sum(), x)
            close(found.mean[t], g, 1e-6)
        assert (found.variance < 1e-10).all()


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        *itertools.product(
            [heads.Categorical, heads.Heteroscedastic], [inference.TaylorGGN, inference.Laplace]
        ),
        (heads.Gaussian, inference.Conjugate),
    ],
)
def test_a_precision_that_overflows_names_its_head(kind, scheme) -> None:
    head = kind(2, 2, name="mine").double()
    y = torch.zeros(4, 1, dtype=torch.long) if kind is heads.Categorical else torch.ones(4, 2)
    h = torch.full((4, 2), 1e160, dtype=torch.float64)
    with pytest.raises(
        errors.NumericalError, match="posterior precision of head 'mine' holds NaN or infinity"
    ):
        scheme().infer(head, h, y, priors.isotropic(head, 1.0))
