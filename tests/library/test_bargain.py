"""`aggregation.Bargain`: G α ∝ 1 / α for the expected inner products of the tasks' gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import close, gradient_moments
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import gradients, heads, posteriors
from bayesagg_pyro.aggregation import Bargain, Mean
from bayesagg_pyro.aggregation._bargain import solve
from bayesagg_pyro.gradients import GradientDistribution

F64 = torch.float64


def per_task(grad: GradientDistribution) -> Tensor:
    """One weight for each task, 0 for those without a target, float64."""
    weights = Bargain().aggregate(grad).weights
    assert weights is not None
    return weights.amax((1, 2)).to(F64)


def expected_inner(grad: GradientDistribution) -> Tensor:
    """E⟨g_i, g_j⟩ of gradients of mean losses, in loops."""
    tasks = grad.tasks
    count = grad.labelled().sum(1).clamp(min=1)
    found = torch.zeros(tasks, tasks, dtype=F64)
    for i in range(tasks):
        for j in range(tasks):
            found[i, j] = (grad.mean[i] * grad.mean[j]).sum() / count[i] / count[j]
        found[i, i] += grad.variance[i].sum() / count[i] ** 2
    return found


def certain(rows: Tensor) -> GradientDistribution:
    """Gradients [tasks, n] of one example, without variance."""
    return GradientDistribution(rows[:, None], torch.zeros_like(rows[:, None]))


def families(tasks: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Gradients without variance, some of which have no bargain or hardly one."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=F64)

    sign = torch.where(torch.arange(tasks) % 2 == 0, 1.0, -1.0)[:, None]
    free = randn(tasks, 9)
    return {
        "random": randn(tasks, 3 * tasks),
        "fewer dimensions than tasks": randn(tasks, max(1, tasks // 3)),
        "on one line": randn(tasks, 1) * randn(1, 4),
        "nearly equal": randn(1, 9) + 1e-5 * free,
        "nearly adding up to nothing": free - free.mean(0) + 1e-5 * randn(tasks, 9),
        "nearly opposed": sign * randn(1, 9) + 1e-4 * free,
        "opposed": sign * randn(1, 9),
    }


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 12, 40])
def test_the_steps_are_enough(tasks: int, rng: torch.Generator) -> None:
    """With the ridge there always is a solution, and it is found to rounding times condition."""
    for _ in range(3):
        for name, rows in families(tasks, rng).items():
            inner = rows @ rows.mT + 1e-6 * (rows * rows).sum(1).diag_embed()
            size = inner.diagonal().sqrt()
            cosines = inner / size / size[:, None]
            found = solve(cosines)
            assert (found > 0).all(), name
            left = (found * (cosines @ found) - 1).abs().max()
            assert left < (1e-12 if name == "random" else 1e-7), (name, float(left))


@pytest.mark.parametrize("missing", [False, True])
def test_expected_products_times_weights_are_their_inverses(
    missing: bool, rng: torch.Generator
) -> None:
    observed = None
    if missing:
        observed = torch.rand(4, 6, generator=rng) < 0.6
        observed[2] = False
    grad = gradient_moments(rng, 4, 6, 3, observed=observed)
    alpha, inner = per_task(grad), expected_inner(grad)
    there = torch.tensor([True, True, not missing, True])
    assert torch.equal(alpha > 0, there)
    product = (alpha * (inner @ alpha))[there]
    close(product / product.mean(), torch.ones_like(product), 1e-5)
    assert (product.sum() - inner.sum() / 16).abs() < 1e-5 * inner.sum()  # the mean's length
    found = Bargain().aggregate(grad)
    close(found.direction, grad.combined(alpha[:, None, None]))
    if observed is not None:
        assert found.weights is not None
        assert torch.equal(found.weights > 0, observed[..., None])


def test_the_posterior_has_these_products(rng: torch.Generator) -> None:
    """Of many draws of the gradients."""
    head = heads.Gaussian(3, tasks=2).double()
    x, y = (torch.randn(5, n, generator=rng, dtype=F64) for n in (3, 2))
    mean = torch.randn(2, 3, generator=rng, dtype=F64)
    posterior = posteriors.Gaussian(mean, 4 * torch.eye(3, dtype=F64).expand(2, 3, 3))
    grad = gradients.distribution(head, posterior, x, y)
    drawn = grad.sample((200_000,), generator=rng).flatten(2) / 5
    inner = torch.einsum("sin,sjn->ij", drawn, drawn) / len(drawn)
    torch.testing.assert_close(expected_inner(grad), inner, rtol=0.02, atol=0.02 * inner.max())
    alpha = per_task(grad)
    balanced = alpha * (inner @ alpha)
    torch.testing.assert_close(balanced[0], balanced[1], rtol=0.03, atol=0)


def test_without_variance_it_is_the_published_bargain(rng: torch.Generator) -> None:
    weighting = pytest.importorskip("torchjd.aggregation").FairGradWeighting(alpha=1.0)
    for tasks in (2, 4, 7):
        rows = torch.randn(tasks, 12, generator=rng, dtype=F64)
        theirs = weighting(rows @ rows.mT)
        ours = per_task(certain(rows))
        torch.testing.assert_close(ours / ours.sum(), theirs / theirs.sum(), rtol=1e-3, atol=0)


def test_uncertain_or_orthogonal_gradients_weigh_by_their_second_moment(
    rng: torch.Generator,
) -> None:
    drawn = gradient_moments(rng)
    uncertain = GradientDistribution(drawn.mean, 1e12 * drawn.variance)
    orthogonal = certain(torch.diag(torch.tensor([3.0, 0.2, 50.0], dtype=F64)))
    for grad in (uncertain, orthogonal):
        alpha, second = per_task(grad), expected_inner(grad).diagonal()
        close(
            alpha * second.sqrt() / (alpha * second.sqrt()).mean(), torch.ones(3, dtype=F64), 1e-5
        )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("sizes", [[1.0, 1e-3, 1e5], [1e-10, 1.0, 1e10]], ids=str)
def test_units_do_not_matter(sizes: list[float], dtype: torch.dtype, rng: torch.Generator) -> None:
    """The direction is the same, and only its length follows the mean gradient's."""
    grad = gradient_moments(rng, dtype=dtype)
    c = torch.tensor(sizes, dtype=dtype)[:, None, None]
    other = GradientDistribution(c * grad.mean, c.square() * grad.variance)
    one, two = Bargain()(grad), Bargain()(other)
    torch.testing.assert_close(one / one.norm(), two / two.norm(), rtol=1e-4, atol=1e-5)
    for scale in (1e-10, 1e10):  # of all tasks: the update follows
        same = GradientDistribution(scale * grad.mean, scale**2 * grad.variance)
        torch.testing.assert_close(Bargain()(same) / scale, one, rtol=1e-5, atol=1e-6)


def test_order_of_tasks(rng: torch.Generator) -> None:
    grad = gradient_moments(rng, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    close(
        per_task(GradientDistribution(grad.mean[order], grad.variance[order])),
        per_task(grad)[order],
    )


@pytest.mark.parametrize("missing", [False, True])
def test_equal_tasks_share_as_in_a_mean(missing: bool, rng: torch.Generator) -> None:
    """And a task alone takes the step of a mean, as is a task without a label to the others."""
    one = gradient_moments(rng, 1)
    observed = torch.ones(3, 4, dtype=torch.bool)
    observed[1] = not missing
    mean, variance = (
        torch.where(observed[..., None], moment.expand(3, -1, -1), 0.0)
        for moment in (one.mean, one.variance)
    )
    grad = GradientDistribution(mean, variance, observed)
    close(per_task(grad), observed.any(1).double() / 3)
    close(Bargain()(grad), Mean()(grad))
    close(Bargain()(one), one.mean[0])


def test_a_gradient_that_is_certainly_nothing_takes_no_part(rng: torch.Generator) -> None:
    rows = torch.randn(3, 7, generator=rng, dtype=F64)
    rows[1] = 0
    with_it, without = per_task(certain(rows)), per_task(certain(rows[[0, 2]]))
    close(with_it[[0, 2]] * 3, without * 2)
    assert with_it[1] == 0
    nothing = Bargain().aggregate(certain(torch.zeros(2, 3, dtype=F64)))
    assert torch.equal(nothing.direction, torch.zeros(1, 3, dtype=F64))


def test_opposed_gradients_give_next_to_no_update(rng: torch.Generator) -> None:
    row = torch.randn(1, 7, generator=rng, dtype=F64)
    for ratio in (1.0, 5.0):
        direction = Bargain()(certain(torch.cat([row, -ratio * row])))
        assert direction.norm() < 1e-2 * row.norm()
    # With variance there is a bargain, in which both count by their second moments.
    grad = certain(torch.cat([row, -5 * row]))
    alpha = per_task(GradientDistribution(grad.mean, grad.variance + 1.0))
    assert 0.05 < alpha[1] / alpha[0] < 1


def test_in_an_engine(rng: torch.Generator) -> None:
    """Regression and classes with missing labels; weights are told and add up the gradients."""
    made: dict[str, Any] = {
        "level": heads.Gaussian(4, 2, missing="nan"),
        "kind": heads.Categorical(4, 3),
    }
    mtl = ba.BayesAgg(made, Bargain(), generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(12, 4, generator=rng, dtype=F64)
    level = torch.randn(12, 2, generator=rng, dtype=F64)
    level[:5, 1] = torch.nan
    targets = {"level": level, "kind": torch.randint(0, 3, (12,), generator=rng)}
    mtl.backward(x.clone().requires_grad_(), targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.keep_gradients = True
    features = x.clone().requires_grad_()
    mtl.backward(features, targets)
    info = mtl.info
    assert info is not None
    assert info.gradients is not None
    alpha = per_task(info.gradients)
    close(info.weights, alpha)
    close(features.grad, 3 * info.gradients.combined(alpha[:, None, None]) / 12)
