"""Diagnostics of gradients, aggregation and features: oracles, alarms and their absence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesagg_pyro import aggregation, diagnostics, gradients, heads, inference, priors
from bayesagg_pyro.aggregation import Aggregated, PrecisionWeighted
from bayesagg_pyro.diagnostics import THRESHOLDS, judge
from bayesagg_pyro.diagnostics._gradients import energy_to_normal
from bayesagg_pyro.errors import SettingError, StateError
from bayesagg_pyro.gradients import GradientDistribution


def alarms(found: Any) -> dict[str, bool]:
    return {check.key: check.alarm for check in found.checks()}


class Problem:
    """Regression whose posterior is tight (many examples, Gaussian gradients) or wide."""

    def __init__(self, rng: torch.Generator, fitted: int, variance: float = 1.0) -> None:
        self.head = heads.Gaussian(4, tasks=3, noise_scale=1.0).double()
        x = torch.randn(fitted, 4, generator=rng, dtype=torch.float64)
        self.truth = torch.randn(3, 4, generator=rng, dtype=torch.float64)
        y = x @ self.truth.mT + torch.randn(fitted, 3, generator=rng, dtype=torch.float64)
        self.prior = priors.isotropic(self.head, variance)
        self.posterior = inference.Conjugate().infer(self.head, x, y, self.prior)
        self.x, self.y = x[:6], y[:6]
        self.grad = gradients.distribution(self.head, self.posterior, self.x, self.y)


def point(mean: Tensor, variance: float | Tensor = 1.0) -> GradientDistribution:
    return GradientDistribution(mean, torch.as_tensor(variance).expand_as(mean).to(mean.dtype))


# -- gradients -------------------------------------------------------------------------------------


def test_moments(rng: torch.Generator) -> None:
    grad = Problem(rng, 40).grad
    found = diagnostics.moments(grad, draws=8192, generator=rng)
    assert alarms(found) == {"moments": False}
    assert found.mean_z.square().mean() < 4
    for wrong in (
        replace(grad, mean=grad.mean + 0.2 * grad.variance.sqrt()),
        replace(grad, variance=1.5 * grad.variance),
    ):
        assert alarms(diagnostics.moments(wrong, draws=8192, generator=rng)) == {"moments": True}


def test_moments_need_samples(rng: torch.Generator) -> None:
    with pytest.raises(StateError, match="cannot be sampled"):
        diagnostics.moments(point(torch.ones(1, 2, 3)))
    with pytest.raises(SettingError, match="draws must be an integer of at least 100"):
        diagnostics.moments(Problem(rng, 10).grad, draws=10)


def test_normality(rng: torch.Generator) -> None:
    tight = diagnostics.normality(Problem(rng, 2000).grad, generator=rng)
    assert not any(alarms(tight).values())
    wide = diagnostics.normality(Problem(rng, 6, 1e4).grad, generator=rng)
    assert alarms(wide)["kurtosis"]
    assert float(wide.energy.median()) > 5 * float(tight.energy.median())


def test_shape_of_known_distributions(rng: torch.Generator) -> None:
    uniform = torch.rand(20000, 1, 1, 1, generator=rng, dtype=torch.float64)
    exponential = -uniform.log()
    moments = {"uniform": (0, -1.2), "exponential": (2, 6)}
    for name, samples in {"uniform": uniform, "exponential": exponential}.items():
        queue = list(samples.split(256))
        grad = replace(
            point(torch.zeros(1, 1, 1, dtype=torch.float64)),
            sampler=lambda count, _, queue=queue: queue.pop(0)[:count],
        )
        found = diagnostics.normality(grad, draws=20000)
        assert float(found.skewness) == pytest.approx(moments[name][0], abs=0.2)
        assert float(found.excess_kurtosis) == pytest.approx(moments[name][1], abs=1.5)


def test_energy_distance_by_brute_force(rng: torch.Generator) -> None:
    x = torch.rand(300, 2, generator=rng, dtype=torch.float64) * 3 - 1
    z = torch.randn(200000, generator=rng, dtype=torch.float64)
    for column, found in enumerate(energy_to_normal(x)):
        to_normal = torch.stack([(a - z).abs().mean() for a in x[:, column]]).mean()
        within = (x[:, None, column] - x[None, :, column]).abs().mean()
        between = (z[:100000] - z[100000:]).abs().mean()
        assert float(found) == pytest.approx(float(2 * to_normal - between - within), abs=0.02)


def test_signal_to_noise(rng: torch.Generator) -> None:
    mean = torch.ones(2, 5, 3)
    mean[1] *= 0.1
    found = diagnostics.signal_to_noise(point(mean))
    torch.testing.assert_close(found.by_task, torch.tensor([1.0, 0.1]).double())
    assert alarms(found) == {"snr": True}
    assert found.checks()[0].where == "task 1"
    assert alarms(diagnostics.signal_to_noise(point(torch.ones(2, 5, 3)))) == {"snr": False}
    seen = torch.ones(2, 5, dtype=torch.bool)
    seen[1] = False
    partly = replace(point(mean), observed=seen)
    assert alarms(diagnostics.signal_to_noise(partly)) == {"snr": False}


def test_what_the_diagonal_drops(rng: torch.Generator) -> None:
    mean = torch.randn(2, 30, 2, generator=rng, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64).expand(2, 30, 2, 2)
    exact = replace(point(mean), covariance=lambda: eye)
    found = diagnostics.diagonal_against_full(exact)
    torch.testing.assert_close(found.cosine, torch.ones(30, dtype=torch.float64))
    torch.testing.assert_close(found.norm_ratio, torch.ones(30, dtype=torch.float64))
    assert alarms(found) == {"diagonal": False}
    tilted = eye.clone()
    tilted[0, :, 0, 1] = tilted[0, :, 1, 0] = 0.99
    tilted[1, :, 0, 1] = tilted[1, :, 1, 0] = -0.99
    # Each task is sure of one diagonal of the plane, and there the two want the opposite.
    plane = torch.tensor([[1.5, 0.5], [-1.5, 0.5]], dtype=torch.float64)[:, None].expand(2, 30, 2)
    found = diagnostics.diagonal_against_full(replace(point(plane), covariance=lambda: tilted))
    assert alarms(found) == {"diagonal": True}
    torch.testing.assert_close(found.correlation, torch.full((2,), 0.99, dtype=torch.float64))


# -- aggregation -----------------------------------------------------------------------------------


def test_weights(rng: torch.Generator) -> None:
    mean = torch.randn(4, 10, 3, generator=rng)
    variance = torch.ones(4, 10, 3)
    even = point(mean, variance)
    found = diagnostics.weights(even, PrecisionWeighted.paper().aggregate(even))
    torch.testing.assert_close(found.mean, torch.full((4,), 0.25).double())
    assert float(found.effective_tasks) == pytest.approx(4)
    assert alarms(found) == {"effective_tasks": False}
    variance[2] = 1e-4
    uneven = point(mean, variance)
    result = PrecisionWeighted.paper().aggregate(uneven)
    found = diagnostics.weights(uneven, result)
    assert alarms(found) == {"effective_tasks": True}
    assert result.effective_tasks is not None
    assert float(found.effective_tasks) == pytest.approx(float(result.effective_tasks))
    assert found.by_example.shape == (4, 10)
    assert bool((found.quantiles[0] <= found.quantiles[1]).all())
    with pytest.raises(StateError, match="no weights"):
        diagnostics.weights(even, Aggregated(mean[0]))


def test_conflicts(rng: torch.Generator) -> None:
    base = torch.randn(20, 5, generator=rng, dtype=torch.float64)
    mean = torch.stack([base, -base, base])
    sure = diagnostics.conflicts(point(mean, 1e-4))
    assert alarms(sure) == {"conflict": True}
    assert float(sure.cosine[0, 1]) == pytest.approx(-1)
    assert float(sure.against[0, 1]) == 1
    assert float(sure.along[0, 2]) == 1
    unsure = diagnostics.conflicts(point(mean, 100.0))  # opposite as much, but only noise
    assert float(unsure.cosine[0, 1]) == pytest.approx(-1)
    assert alarms(unsure) == {"conflict": False}
    assert float(unsure.against.max()) == 0


def test_inner_products_are_as_uncertain_as_said(rng: torch.Generator) -> None:
    """Under independent noise around zero agreement, 2 sigma is passed as often as it should."""
    mean = torch.zeros(2, 4000, 50, dtype=torch.float64)
    drawn = torch.randn(2, 4000, 50, generator=rng, dtype=torch.float64)
    found = diagnostics.conflicts(point(mean + drawn, 1.0))
    assert float(found.against[0, 1]) < 0.02  # noise is counted in mean and variance: rarer still


def test_shares_and_changes(rng: torch.Generator) -> None:
    grad = Problem(rng, 40).grad
    result = PrecisionWeighted.paper(0.7).aggregate(grad)
    found = diagnostics.update(grad, result)
    assert found.shares is not None
    assert float(found.shares.sum()) == pytest.approx(1)
    step = 1e-6
    change = -(grad.mean * result.direction).sum((1, 2))
    best = torch.linalg.vector_norm(grad.mean.flatten(1), dim=1) * result.direction.norm()
    torch.testing.assert_close(found.change, change / best)
    moved = Problem(torch.Generator().manual_seed(1234), 40)
    for task in range(3):  # the expected loss itself, moved along the direction
        losses = []
        for sign in (1, -1):
            h = moved.x - sign * step * result.direction
            spread = moved.posterior.project(h).variance.expand(3, -1)[task]  # type: ignore[attr-defined]
            error = (h @ moved.posterior.mean[task] - moved.y[:, task]).square()
            losses.append((error + spread).sum())
        slope = (losses[0] - losses[1]) / (2 * step)
        assert float(slope) == pytest.approx(float(change[task]), rel=1e-4)
    mean = aggregation.Mean().aggregate(grad)
    torch.testing.assert_close(diagnostics.update(grad, mean).change, found.change_of_mean)


def test_an_overruled_task_alarms() -> None:
    mean = torch.tensor([[[1.0, 0.0]], [[1.0, 0.2]], [[-0.5, 0.1]]])
    grad = point(mean)
    found = diagnostics.update(grad, PrecisionWeighted.paper(0.0).aggregate(grad))
    assert alarms(found) == {"first_order": True, "share": True}
    assert found.checks()[0].where == "task 2"
    agreeing = point(torch.tensor([[[1.0, 0.0]], [[1.0, 0.2]]]))
    found = diagnostics.update(agreeing, PrecisionWeighted.paper(0.0).aggregate(agreeing))
    assert alarms(found) == {"first_order": False, "share": False}


def test_uncertainty_pull(rng: torch.Generator) -> None:
    tight, wide = Problem(rng, 2000), Problem(rng, 6, 1e4)
    pulls = [diagnostics.uncertainty_pull(p.head, p.posterior, 5 * p.x, p.y) for p in (tight, wide)]
    assert pulls[0] is not None
    assert pulls[1] is not None
    assert not judge("uncertainty_pull", pulls[0]).alarm
    far = diagnostics.uncertainty_pull(
        wide.head, wide.prior, wide.x, torch.zeros_like(wide.y)
    )  # nothing but uncertainty
    assert far is not None
    assert judge("uncertainty_pull", far).alarm
    head, posterior, x, y = tight.head, tight.posterior, tight.x, tight.y
    residual = (x @ posterior.mean.mT - y).mT
    error = residual[..., None] * posterior.mean[:, None]
    pull = tight.grad.mean / 2 - error  # what is left of E[g] / 2
    norms = [part.flatten(1).norm(dim=1) for part in (pull, error)]
    found = diagnostics.uncertainty_pull(head, posterior, x, y)
    torch.testing.assert_close(found, norms[0] / (norms[0] + norms[1]))
    binary = heads.Bernoulli(4)
    assert diagnostics.uncertainty_pull(binary, priors.isotropic(binary, 1.0), x, y) is None


# -- features --------------------------------------------------------------------------------------


def test_spectrum(rng: torch.Generator) -> None:
    h = torch.randn(500, 16, generator=rng)
    found = diagnostics.spectrum(h)
    assert alarms(found) == {"live_units": False, "effective_rank": False}
    assert int(found.rank) == int(found.live_units) == 16
    dead = h.clone()
    dead[:, :6] = 0
    dead[:, 6] = 3  # a constant is not alive either
    found = diagnostics.spectrum(dead)
    assert int(found.live_units) == 9
    assert int(found.rank) == 10
    assert alarms(found)["live_units"]
    flat = h[:, :1] + 1e-3 * h
    found = diagnostics.spectrum(flat)
    assert alarms(found) == {"live_units": False, "effective_rank": True}
    assert float(found.effective_rank) == pytest.approx(1, abs=0.01)
    few = diagnostics.spectrum(h[:4])
    assert few.eigenvalues.shape == (16,)
    assert int(few.rank) == 4


def test_effective_rank_of_equal_directions() -> None:
    found = diagnostics.spectrum(torch.cat([torch.eye(5), torch.zeros(5, 3)], 1))
    assert float(found.effective_rank) == pytest.approx(5)


def test_staleness(rng: torch.Generator) -> None:
    problem = Problem(rng, 200)
    x = torch.randn(200, 4, generator=rng, dtype=torch.float64)
    y = x @ problem.truth.mT + torch.randn(200, 3, generator=rng, dtype=torch.float64)
    same = diagnostics.staleness(
        problem.head, inference.Conjugate(), problem.posterior, problem.prior, x, y
    )
    assert alarms(same) == {"stale_cost": False}
    turned = x[:, [1, 0, 3, 2]]  # the network has swapped its units since
    moved = diagnostics.staleness(
        problem.head, inference.Conjugate(), problem.posterior, problem.prior, turned, y
    )
    assert alarms(moved) == {"stale_cost": True}
    assert bool((moved.distance > 3 * same.distance).all())
    assert bool((moved.deviations > same.deviations).all())
    fresh = inference.Conjugate().infer(problem.head, x, y, problem.prior)
    none = diagnostics.staleness(problem.head, inference.Conjugate(), fresh, problem.prior, x, y)
    assert float(none.distance.max()) == float(none.cost.abs().max()) == 0


# -- thresholds ------------------------------------------------------------------------------------


def test_judging() -> None:
    assert judge("rhat", 1.005).alarm is False
    found = judge("rhat", torch.tensor([[1.0, 1.2], [1.1, 1.0]]), ("task", "weight"))
    assert (found.alarm, found.where) == (True, "task 0, weight 1")
    assert "ALARM" in str(found)
    assert judge("ess", torch.tensor([1000.0, 10.0])).value == 10
    assert judge("ess", torch.tensor([1000.0, torch.nan])).alarm
    assert judge("condition", torch.inf).alarm


def test_every_threshold_is_explained() -> None:
    for threshold in THRESHOLDS.values():
        assert threshold.side in ("above", "below")
        assert threshold.label
        assert threshold.meaning.endswith(".")
        assert threshold.source


def test_the_documentation_lists_the_thresholds_as_they_are() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "thresholds.md"
    text = page.read_text(encoding="utf-8")
    for key, threshold in THRESHOLDS.items():
        row = f"| `{key}` | {threshold.label} | {threshold.side} {threshold.limit:g} |"
        assert row in text, key
