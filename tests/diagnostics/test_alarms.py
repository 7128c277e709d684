"""Alarms on calibrated input are rare at any number of examples, and common on the other kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayesagg_pyro import diagnostics, gradients, heads, inference, priors
from bayesagg_pyro.gradients import GradientDistribution

REPEATS = 80


def binomial_limit(repeats: int, rate: float = 0.05) -> int:
    """What a rate of false alarms of 5 % passes once in a thousand times (normal tail)."""
    return math.ceil(repeats * rate + 3.1 * math.sqrt(repeats * rate * (1 - rate)))


def calibrated(rng: torch.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    p = torch.rand(shape, generator=rng, dtype=torch.float64)
    return {"even": p, "sure": p**0.1, "rare": 0.02 * p, "middle": 0.4 + 0.2 * p}[kind]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((100, 1), kind) for kind in ("even", "sure", "rare", "middle")]
    + [((500, 1), "even"), ((100, 12), "even"), ((100, 12), "rare"), ((10_000, 1), "even")],
    ids=str,
)
def test_calibrated_probabilities_rarely_alarm(rng, shape, kind) -> None:
    repeats = REPEATS if shape[0] < 10_000 else 40
    alarms = 0
    for _ in range(repeats):
        p = calibrated(rng, shape, kind)
        y = torch.bernoulli(p, generator=rng)
        (check,) = diagnostics.reliability(p, y).checks()
        alarms += check.alarm
    assert alarms <= binomial_limit(repeats)


@pytest.mark.parametrize("n", [100, 2000])
def test_p_values_hold_their_level(rng, n) -> None:
    """Without the limit on the error's size: uniform or a little above, for several tasks."""
    found = []
    for _ in range(100):
        p = calibrated(rng, (n, 3), "even")
        found.append(float(diagnostics.reliability(p, torch.bernoulli(p)).p_values()[0].min()))
    values = torch.tensor(found)
    for level in (0.05, 0.2):
        rate = float((values <= level).double().mean())
        assert rate <= level + 3.1 * math.sqrt(level * (1 - level) / 100)
    assert float((values <= 0.4).double().mean()) > 0.15  # and not far from it


@pytest.mark.parametrize(("n", "sharpen"), [(100, 6.0), (500, 3.0), (10_000, 2.0)])
def test_miscalibrated_probabilities_alarm(rng, n, sharpen) -> None:
    alarms = 0
    for _ in range(20):
        logits = 1.5 * torch.randn(n, 2, generator=rng, dtype=torch.float64)
        y = torch.bernoulli(logits.sigmoid(), generator=rng)
        alarms += diagnostics.reliability((sharpen * logits).sigmoid(), y).checks()[0].alarm
    assert alarms >= 18


def test_the_alarm_names_task_and_examples(rng) -> None:
    p = calibrated(rng, (400, 3), "even")
    y = torch.bernoulli(p, generator=rng)
    y[:, 1] = 1 - y[:, 1]
    seen = torch.ones_like(y, dtype=torch.bool)
    seen[300:, 1] = False
    seen[:, 2] = False
    (check,) = diagnostics.reliability(p, y, observed=seen).checks()
    assert check.alarm
    assert "task 1, 300 examples; up to 0." in check.where
    (fine,) = diagnostics.reliability(p[:, :1], y[:, :1]).checks()
    assert not fine.alarm
    assert fine.where.startswith("400 examples")


def test_sure_and_wrong_alarms() -> None:
    p = torch.tensor([1.0, 0.0, 1.0] * 10)
    assert not diagnostics.reliability(p, p).checks()[0].alarm
    assert diagnostics.reliability(p, 1 - p).checks()[0].alarm


def test_uninformative_uncertainty_rarely_alarms(rng) -> None:
    """Of one spread for all, the correlation is as often below zero as above."""
    alarms = 0
    for n in (100, 1000):
        for _ in range(REPEATS):
            deviation = torch.rand(n, generator=rng) + 0.5
            error = torch.randn(n, generator=rng)
            alarms += diagnostics.epistemic_against_error(deviation, error).checks()[0].alarm
    assert alarms <= binomial_limit(2 * REPEATS)
    upside_down = diagnostics.epistemic_against_error(1 / (0.1 + error.abs()), error)
    assert upside_down.checks()[0].alarm
    assert "1000 predictions" in upside_down.checks()[0].where


@pytest.mark.parametrize("draws", [100, 1000, 4000])
@pytest.mark.parametrize("tasks", [1, 20])
def test_importance_weights_of_finite_variance_rarely_alarm(rng, draws, tasks) -> None:
    """Ratios with an exact Pareto tail of k = 0.5, the worst that still has a variance."""
    alarms = 0
    for _ in range(40 if tasks == 1 else 6):
        uniform = torch.rand(draws, tasks, generator=rng, dtype=torch.float64)
        weights, khat = diagnostics.psis(-0.5 * uniform.log())
        found = diagnostics.Importance(khat, weights, torch.zeros(draws, tasks, 1))
        alarms += found.checks()[0].alarm
    assert alarms <= binomial_limit(40 if tasks == 1 else 6)


def test_a_posterior_that_misses_the_mass_alarms(rng) -> None:
    head = heads.Bernoulli(3, tasks=2).double()
    h = torch.randn(60, 3, generator=rng, dtype=torch.float64)
    y = torch.bernoulli((2 * h[:, :1]).sigmoid().expand(60, 2), generator=rng)
    prior = priors.isotropic(head, 4.0)
    good = inference.Laplace().infer(head, h, y, prior)
    narrow = type(good)(good.mean, 25 * good.precision_matrix)
    for posterior, alarm in ((good, False), (narrow, True)):
        for draws in (200, 2000):
            (check,) = diagnostics.importance(
                head, posterior, prior, h, y, draws=draws, generator=rng
            ).checks()
            assert check.alarm == alarm, check
            assert f"{draws} draws" in check.where
            assert check.where.startswith("task ")


@pytest.mark.parametrize("draws", [100, 2000])
@pytest.mark.parametrize("examples", [2, 16])
def test_right_moments_rarely_alarm(rng, draws, examples) -> None:
    """Of products of correlated Gaussians, whose fourth moments are hard to sample."""
    alarms = 0
    for _ in range(20):
        head = heads.Gaussian(4, tasks=2).double()
        h = torch.randn(examples, 4, generator=rng, dtype=torch.float64)
        y = torch.randn(examples, 2, generator=rng, dtype=torch.float64)
        mask = torch.rand(examples, 2, generator=rng) < 0.7
        grad = gradients.distribution(head, priors.isotropic(head, 1.0), h, (y, mask))
        found = diagnostics.moments(grad, draws=draws, generator=rng).checks()
        alarms += any(check.alarm for check in found)
    assert alarms <= binomial_limit(20)


def test_wrong_moments_alarm_and_say_where(rng) -> None:
    head = heads.Gaussian(4, tasks=2).double()
    h = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    mask = torch.ones(3, 2, dtype=torch.bool)
    mask[0, 1] = False
    grad = gradients.distribution(head, priors.isotropic(head, 0.1), h, (y, mask))
    variance = grad.variance.clone()
    variance[1, 2] *= 3
    wrong = GradientDistribution(
        grad.mean, variance, grad.observed, grad.groups, sampler=grad.sampler
    )
    (check,) = diagnostics.moments(wrong, generator=rng).checks()
    assert check.alarm
    assert check.where.startswith("variance, task 1, example 2, dimension ")
    assert check.where.endswith("4096 draws")
    found = diagnostics.moments(grad, generator=rng)
    assert found.mean_z[1, 0].isnan().all()
    assert found.mean_z[grad.observed].isfinite().all()
