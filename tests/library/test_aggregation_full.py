"""The paper's full-covariance solution (eq. nll_solution_full) against dense inverses."""

from __future__ import annotations

import pytest
import torch
from oracles import case, close, spd

from bayesagg_pyro import errors, gradients, inference
from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.aggregation._bounds import raise_floor
from bayesagg_pyro.gradients import GradientDistribution, cat

FULL = PrecisionWeighted(covariance="full")


def grads(rng, tasks=3, batch=4, d=5, observed=None) -> GradientDistribution:
    cov = torch.stack([spd(rng, batch, d) for _ in range(tasks)])
    mean = torch.randn(tasks, batch, d, generator=rng, dtype=torch.float64)
    if observed is not None:
        mean = mean.where(observed[..., None], 0.0)
        cov = cov.where(observed[..., None, None], 0.0)
    variance = cov.diagonal(dim1=-2, dim2=-1)
    return GradientDistribution(mean, variance, observed, covariance=lambda: cov)


def dense(grad: GradientDistribution, covariance=None) -> tuple[torch.Tensor, torch.Tensor]:
    tasks, batch, d = grad.mean.shape
    covariance = grad.covariance_matrix if covariance is None else covariance
    directions, diagonals = torch.zeros(batch, d).double(), torch.zeros(tasks, batch, d).double()
    for b in range(batch):
        seen = [t for t in range(tasks) if grad.observed is None or grad.observed[t, b]]
        if not seen:
            continue
        lam = {t: torch.linalg.inv(covariance[t, b]) for t in seen}
        total = torch.linalg.inv(sum(lam.values()))
        for t in seen:
            count = batch if grad.observed is None else grad.observed[t].sum()
            matrix = total @ lam[t] * len(seen) / tasks
            directions[b] += matrix @ grad.mean[t, b] * batch / count
            diagonals[t, b] = matrix.diagonal()
    return directions, diagonals


def test_equals_dense_inverses(rng) -> None:
    grad = grads(rng)
    result = FULL.aggregate(grad)
    direction, diagonals = dense(grad)
    close(result.direction, direction)
    close(result.weights, diagonals)
    close(result.weights.sum(0), torch.ones(4, 5).double())
    assert result.jitter.item() == 0


def test_on_the_moments_of_a_head(rng) -> None:
    c = case(rng)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    grad = gradients.distribution(c.head, p, c.features, c.targets)
    close(FULL(grad), dense(grad)[0], 1e-8)


def test_with_missing_targets(rng) -> None:
    observed = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 1]], dtype=torch.bool)
    grad = grads(rng, observed=observed)
    result = FULL.aggregate(grad)
    direction, diagonals = dense(grad)
    close(result.direction, direction)
    close(result.weights, diagonals)
    assert (result.direction[2] == 0).all()


def test_covariance_averaged_over_the_batch(rng) -> None:
    grad = grads(rng)
    rule = PrecisionWeighted(covariance="full", resolution="dimension")
    average = grad.covariance_matrix.mean(1, keepdim=True).expand(-1, 4, -1, -1)
    close(rule(grad), dense(grad, average)[0])
    close(rule.weights(grad), dense(grad, average)[1])


def test_covariance_averaged_over_observed_examples(rng) -> None:
    observed = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 1]], dtype=torch.bool)
    grad = grads(rng, observed=observed)
    full = grad.covariance_matrix
    average = torch.stack([full[t][observed[t]].mean(0) for t in range(3)])[:, None]
    rule = PrecisionWeighted(covariance="full", resolution="dimension")
    precision = average[:, 0].inverse()
    matrices = torch.linalg.solve(precision.sum(0), precision)  # of the batch's tasks, not each's
    mean = grad.mean * (4 / observed.sum(1).double())[:, None, None]
    close(rule(grad), torch.einsum("tde,tbe->bd", matrices, mean))
    diagonals = matrices.diagonal(dim1=1, dim2=2)[:, None] * observed[..., None]
    close(rule.weights(grad), diagonals)


def test_diagonal_covariances_reduce_to_the_diagonal_rule(rng) -> None:
    base = grads(rng)
    grad = GradientDistribution(
        base.mean, base.variance, covariance=lambda: torch.diag_embed(base.variance)
    )
    close(FULL(grad), PrecisionWeighted.paper(1.0)(grad))
    close(FULL.weights(grad), PrecisionWeighted.paper(1.0).weights(grad))


@pytest.mark.parametrize("c", [1e-6, 1e6])
def test_scale_law(rng, c) -> None:
    grad = grads(rng)
    scaled = GradientDistribution(
        grad.mean * c, grad.variance * c**2, covariance=lambda: grad.covariance_matrix * c**2
    )
    close(FULL(scaled) / c, FULL(grad), 1e-9)


def test_rotating_the_features_rotates_the_direction(rng) -> None:
    """What the diagonal rule cannot do."""
    grad = grads(rng)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=torch.float64)).Q
    cov = turn @ grad.covariance_matrix @ turn.T
    turned = GradientDistribution(
        grad.mean @ turn.T, cov.diagonal(dim1=-2, dim2=-1), covariance=lambda: cov
    )
    close(FULL(turned), FULL(grad) @ turn.T)


def test_heads_joined(rng) -> None:
    a, b = grads(rng, tasks=1), grads(rng, tasks=2)
    joint = cat({"a": a, "b": b})
    close(joint.covariance_matrix, torch.cat([a.covariance_matrix, b.covariance_matrix]))
    close(FULL(joint), dense(joint)[0])


def test_tasks_without_any_covariance_share_the_weight(rng) -> None:
    grad = grads(rng)
    covariance = grad.covariance_matrix.clone()
    covariance[:, 0] = 0  # all tasks are certain of the first example
    covariance[0, 1] = 0  # one task of the second
    some = GradientDistribution(grad.mean, grad.variance, covariance=lambda: covariance)
    direction = FULL(some)
    close(direction[0], grad.mean[:, 0].mean(0))
    torch.testing.assert_close(direction[1], grad.mean[0, 1], atol=1e-9, rtol=1e-9)
    close(direction[2:], FULL(grad)[2:])


def test_a_direction_without_variance_is_a_typed_error(rng) -> None:
    grad = grads(rng)
    covariance = torch.diag_embed(torch.tensor([1.0, 1, 1, 1, 0]).double()).expand(3, 4, 5, 5)
    flat = GradientDistribution(grad.mean, grad.variance, covariance=lambda: covariance)
    with pytest.raises(errors.NumericalError, match="covariance of a gradient"):
        FULL(flat)


def test_float32_stays_close_to_float64(rng) -> None:
    grad = grads(rng)
    single = GradientDistribution(
        grad.mean.float(),
        grad.variance.float(),
        covariance=lambda: grad.covariance_matrix.float(),
    )
    assert FULL(single).dtype == torch.float32
    close(FULL(single).double(), FULL(grad), 1e-4)


def test_a_floor_is_relative_to_the_median_over_tasks() -> None:
    variance = torch.tensor([[[1.0, 9.0]], [[2.0, 0.1]], [[0.1, 3.0]]])
    right = torch.tensor([[[1.0, 9.0]], [[2.0, 1.5]], [[0.5, 3.0]]])
    assert torch.equal(raise_floor(variance, 0.5, None), right)
    everything = torch.ones(3, 1, 1, dtype=torch.bool)
    assert torch.equal(raise_floor(variance, 0.5, everything), right)
