"""TaylorGGN and Laplace against automatic differentiation, an explicit Newton step and LBFGS."""

from __future__ import annotations

import pytest
import torch
from dense import COMPLICATIONS, KINDS, PAIRS, close, minimum, newton, prior, task

from bayesagg_pyro import heads, inference, priors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", [*COMPLICATIONS, {"bias": False}], ids=str)
def test_taylor_is_an_explicit_newton_step_for_each_task(rng, kind, extra) -> None:
    """Covariance: inverse autograd Hessian of the loop's total, to 1e-8; gradient term kept."""
    t = task(rng, kind, **extra)
    p = prior(rng, t.head)
    found = inference.TaylorGGN().infer(t.head, t.features, t.given, p)
    for k in range(t.head.tasks):
        mean, covariance = newton(t.potential(p, k), t.head.point()[k])
        close(found.mean[k], mean, 1e-8)
        close(found.covariance_matrix[k], covariance, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_of_the_data_alone_is_the_hessian(rng, kind) -> None:
    """Precision minus the prior's: nothing of the prior's size hides an error."""
    t = task(rng, kind, mask=True, weight=True, by_target=True)
    p = prior(rng, t.head)
    found = inference.TaylorGGN().infer(t.head, t.features, t.given, p)
    for k in range(t.head.tasks):
        point = t.head.point()[k].detach()
        hessian = torch.autograd.functional.hessian(lambda w, k=k: t.nll(w, k), point)
        close(found.precision_matrix[k] - p.precision_matrix[k], hessian, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_diagonal_structure_is_the_diagonal_of_the_curvature(rng, kind) -> None:
    """The step too: mean = ŵ − a / diag(B) with the whole gradient a."""
    t = task(rng, kind, mask=True, weight=True, by_target=True)
    p = priors.isotropic(t.head, 0.7)
    found = inference.TaylorGGN("diag").infer(t.head, t.features, t.given, p)
    for k in range(t.head.tasks):
        value, point = t.potential(p, k), t.head.point()[k].detach()
        diagonal = torch.autograd.functional.hessian(value, point).diagonal()
        slope = torch.autograd.functional.jacobian(value, point)
        close(found.variance[k], 1 / diagonal, 1e-8)
        close(found.mean[k], point - slope / diagonal, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_laplace_finds_the_optimum_that_lbfgs_finds(rng, kind, structure) -> None:
    t = task(rng, kind, mask=True, weight=True, by_target=True)
    p = priors.isotropic(t.head, 2.0) if structure == "diag" else prior(rng, t.head)
    scheme = inference.Laplace(structure, max_steps=2000 if structure == "diag" else 20)
    found = scheme.infer(t.head, t.features, t.given, p)
    assert found.info.converged.all()
    assert (found.info.newton_decrement < 1e-8).all()
    assert (found.info.steps > 0).all()
    for k in range(t.head.tasks):
        value = t.potential(p, k)
        optimum = minimum(value, t.head.point()[k])
        scale = found.variance[k].sqrt()
        assert ((found.mean[k] - optimum).abs() < 1e-6 * scale).all()
        hessian = torch.autograd.functional.hessian(value, optimum)
        wanted = torch.linalg.inv(hessian) if structure == "full" else 1 / hessian.diagonal()
        got = found.covariance_matrix[k] if structure == "full" else found.variance[k]
        close(got, wanted, 1e-6)


def test_laplace_says_when_it_has_not_arrived(rng) -> None:
    """Each task for itself; a task at its optimum takes no step."""
    t = task(rng, "binary")
    p = priors.isotropic(t.head, 1.0)
    arrived = inference.Laplace().infer(t.head, t.features, t.given, p)
    with torch.no_grad():
        t.head.weight[0].copy_(arrived.mean[0])
    short = inference.Laplace(max_steps=1).infer(t.head, t.features, t.given, p)
    assert short.info.steps.tolist() == [0, 1]
    assert short.info.converged.tolist() == [True, False]


@pytest.mark.parametrize(("kind", "structure"), PAIRS)
def test_at_the_optimum_both_schemes_coincide(rng, kind, structure) -> None:
    t = task(rng, kind, mask=True, weight=True)
    p = priors.isotropic(t.head, 1.5)
    laplace = inference.Laplace(structure, max_steps=2000).infer(t.head, t.features, t.given, p)
    with torch.no_grad():
        t.head.weight.copy_(laplace.weight_mean)
    taylor = inference.TaylorGGN(structure).infer(t.head, t.features, t.given, p)
    close(taylor.mean, laplace.mean, 1e-8)
    close(taylor.variance, laplace.variance, 1e-8)
    close(taylor.to_gaussian().precision_matrix, laplace.to_gaussian().precision_matrix, 1e-8)
    assert not taylor.info.overlong.any()


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_independent_blocks(rng, kind) -> None:
    """T tasks in one head give what T heads of one task give, weights and holes included."""
    t = task(rng, kind, tasks=4, mask=True, weight=True, by_target=kind == "class")
    p = prior(rng, t.head)
    whole = inference.TaylorGGN().infer(t.head, t.features, t.given, p)
    assert whole.precision_matrix.shape == (4, t.head.weight_size, t.head.weight_size)
    rows = t.head.outputs_per_task
    for k in range(4):
        one = (
            heads.Bernoulli(3)
            if kind == "binary"
            else heads.Categorical(3, 3, class_weight=t.by_target)
        ).double()
        with torch.no_grad():
            one.weight.copy_(t.head.weight[k * rows : (k + 1) * rows])
        own = type(p)(p.mean[k : k + 1], p.precision_matrix[k : k + 1])
        values, mask, weight = (x[:, k] for x in (t.targets, t.mask, t.weight))
        part = inference.TaylorGGN().infer(one, t.features, (values, mask, weight), own)
        close(part.mean[0], whole.mean[k])
        close(part.covariance_matrix[0], whole.covariance_matrix[k])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_a_weight_of_two_is_an_example_seen_twice(rng, kind, structure) -> None:
    """Exact for full and diagonal; the Kronecker factor over features ignores weights, G does not.

    For "kron" the weights are uniform, where its A/n is the same on both sides.
    """
    if kind == "binary" and structure == "kron":
        pytest.skip("Bernoulli heads have no Kronecker structure")
    t = task(rng, kind, by_target=True)
    times = torch.randint(0, 4, (14,), generator=rng)
    if structure == "kron":
        times = torch.full((14,), 3)
    rows = torch.repeat_interleave(torch.arange(14), times)
    p = priors.isotropic(t.head, 1.0)
    scheme = inference.TaylorGGN(structure)
    one = scheme.infer(t.head, t.features, (t.targets, None, times.double()), p)
    two = scheme.infer(t.head, t.features[rows], t.targets[rows], p)
    close(one.mean, two.mean)
    close(one.to_gaussian().covariance_matrix, two.to_gaussian().covariance_matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_enter_loss_and_log_probability_alike(rng, kind) -> None:
    t = task(rng, kind, mask=True, weight=True, by_target=True)
    values = t.targets
    loss = t.head.loss(t.head(t.features), values).detach()
    nll = t.head.negative_log_prob(t.head(t.features), values).detach()
    close(loss, nll)
    for k in range(t.head.tasks):
        for b in range(len(t.features)):
            expected = -t.log_likelihood(t.head.point()[k].detach(), k, b) / t.weight[b, k]
            close(loss[b, k], expected)


def test_an_unobserved_task_keeps_its_prior(rng) -> None:
    for kind in KINDS:
        t = task(rng, kind)
        mask = torch.ones_like(t.targets, dtype=torch.bool)
        mask[:, 1] = False
        p = prior(rng, t.head)
        found = inference.TaylorGGN().infer(t.head, t.features, (t.targets, mask), p)
        close(found.mean[1], p.mean[1])
        close(found.covariance_matrix[1], p.covariance_matrix[1])


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_gaussian_heads_have_an_exact_expansion(rng, structure) -> None:
    """Taylor on a Gaussian head is Conjugate, from wherever the expansion starts."""
    head = heads.Gaussian(3, tasks=2, noise_scale=[0.5, 2.0]).double()
    h = torch.eye(3, dtype=torch.float64) * 2  # orthogonal: the diagonal is exact too
    y = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    p = priors.isotropic(head, 0.5)
    exact = inference.Conjugate().infer(head, h, y, p)
    for scheme in (inference.TaylorGGN(structure), inference.Laplace(structure)):
        found = scheme.infer(head, h, y, p)
        close(found.mean, exact.mean)
        close(found.variance, exact.variance)
        if isinstance(scheme, inference.TaylorGGN):
            close(found.info.gain_ratio, torch.ones(2).double(), 1e-8)
