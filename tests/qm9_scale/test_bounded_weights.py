"""A floor under variances and a cap on ratios of weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesagg_pyro import BayesAgg, heads
from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.errors import SettingError
from bayesagg_pyro.gradients import GradientDistribution

DOUBLE = torch.float64


def gradients(seed: int, spread: float = 3.0, missing: bool = False) -> GradientDistribution:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(5, 4, 3, generator=generator, dtype=DOUBLE)
    variance = (spread * torch.randn(5, 4, 3, generator=generator, dtype=DOUBLE)).exp()
    observed = None
    if missing:
        observed = torch.rand(5, 4, generator=generator) < 0.6
        observed[0] = True
        mean, variance = (torch.where(observed[..., None], x, 0.0) for x in (mean, variance))
    return GradientDistribution(mean, variance, observed)


@pytest.mark.parametrize("resolution", ["example", "dimension", "task"])
@pytest.mark.parametrize("floor", [0.1, 1.0, 5.0])
def test_floor_by_hand(resolution: Any, floor: float) -> None:
    grad = gradients(0)
    variance = grad.variance
    if resolution != "example":
        variance = variance.mean(1, keepdim=True)
    if resolution == "task":
        variance = variance.mean(2, keepdim=True)
    raised = torch.maximum(variance, floor * variance.sort(0).values[2])  # the median of five
    weights = raised.pow(-0.7) / raised.pow(-0.7).sum(0)
    rule = PrecisionWeighted(0.7, resolution=resolution, floor=floor)
    torch.testing.assert_close(rule.weights(grad), weights.expand_as(grad.mean))
    torch.testing.assert_close(rule(grad), (weights * grad.mean).sum(0))


def test_floor_sees_observed_tasks_only() -> None:
    grad = gradients(1, missing=True)
    assert grad.observed is not None
    weights = PrecisionWeighted(1.0, floor=0.5, resolution="example").weights(grad)
    assert weights is not None
    for example in range(4):
        seen = grad.observed[:, example]
        alone = GradientDistribution(
            grad.mean[seen, example][:, None], grad.variance[seen, example][:, None]
        )
        expected = PrecisionWeighted(1.0, floor=0.5, resolution="example").weights(alone)
        assert expected is not None
        share = seen.double().mean()
        torch.testing.assert_close(weights[seen, example], share * expected[:, 0])
        assert not weights[~seen, example].any()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.0, 50.0), st.floats(0.0, 1.0), st.booleans())
def test_cap_bounds_every_ratio(seed: int, ratio: float, power: float, missing: bool) -> None:
    grad = gradients(seed, missing=missing)
    weights = PrecisionWeighted(power, max_ratio=ratio, resolution="example").weights(grad)
    free = PrecisionWeighted.paper(power).weights(grad)
    assert weights is not None
    assert free is not None
    seen = torch.ones(5, 4, dtype=torch.bool) if grad.observed is None else grad.observed
    low = torch.where(seen[..., None], weights, torch.inf).amin(0)
    assert bool((weights.amax(0) <= low * ratio * (1 + 1e-9)).all())
    torch.testing.assert_close(weights.sum(0), free.sum(0))
    inside = free.amax(0) <= ratio * torch.where(seen[..., None], free, torch.inf).amin(0)
    torch.testing.assert_close(weights[:, inside], free[:, inside])


def test_cap_of_one_is_the_mean() -> None:
    grad = gradients(3)
    torch.testing.assert_close(
        PrecisionWeighted(1.0, max_ratio=1.0, resolution="example")(grad), grad.mean.mean(0)
    )


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("bounds", [{"floor": 0.3}, {"max_ratio": 4.0}])
def test_scaling_all_losses_scales_the_direction(scale: float, bounds: dict[str, float]) -> None:
    grad = gradients(4)
    scaled = GradientDistribution(grad.mean * scale, grad.variance * scale**2)
    rule = PrecisionWeighted(0.8, **bounds, resolution="example")
    torch.testing.assert_close(rule(scaled), rule(grad) * scale)


def test_a_task_without_variance_no_longer_takes_all() -> None:
    mean = torch.ones(3, 1, 1, dtype=DOUBLE)
    variance = torch.tensor([0.0, 1.0, 4.0], dtype=DOUBLE).reshape(3, 1, 1)
    grad = GradientDistribution(mean, variance)
    floor = PrecisionWeighted(1.0, floor=0.5, resolution="example").weights(grad)
    cap = PrecisionWeighted(1.0, max_ratio=4.0, resolution="example").weights(grad)
    assert floor is not None
    assert cap is not None
    torch.testing.assert_close(
        floor.flatten() / floor[1, 0, 0], torch.tensor([2.0, 1.0, 0.25]).double()
    )
    torch.testing.assert_close(cap.flatten(), torch.tensor([4.0, 1.0, 1.0]).double() / 6)


@pytest.mark.parametrize(
    "given",
    [{"floor": 0.0}, {"floor": -1.0}, {"floor": float("inf")}, {"max_ratio": 0.5},
     {"max_ratio": float("nan")}, {"covariance": "full", "floor": 0.1}],
)  # fmt: skip
def test_bad_bounds_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"floor|max_ratio"):
        PrecisionWeighted(1.0, **given, resolution="example")


def test_in_the_engine() -> None:
    torch.manual_seed(0)
    rule = PrecisionWeighted(1.0, max_ratio=2.0, resolution="example")
    assert repr(rule).endswith("max_ratio=2.0)")
    mtl = BayesAgg({"y": heads.Gaussian(3, tasks=4)}, rule)
    x, y = torch.randn(30, 3), torch.randn(30, 4) * torch.tensor([1e-3, 1.0, 10.0, 1e3])
    mtl.collect(x, {"y": y})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward((x * torch.ones((), requires_grad=True)), {"y": y})
    assert mtl.info is not None
    assert mtl.info.effective_tasks is not None
    assert float(mtl.info.effective_tasks) > 3.5
