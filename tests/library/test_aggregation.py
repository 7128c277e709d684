"""One direction out of many gradient distributions: weights, scales, symmetries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import close, gradient_moments, precision_weights

from bayesagg_pyro import aggregation, errors
from bayesagg_pyro.aggregation import Mean, PrecisionWeighted, Sum
from bayesagg_pyro.gradients import GradientDistribution, cat

ALL = [
    Mean(),
    Sum(),
    PrecisionWeighted.paper(),
    PrecisionWeighted.paper(0.85),
    PrecisionWeighted(0.5, resolution="dimension"),
    PrecisionWeighted(0.5, resolution="task"),
    PrecisionWeighted(0.8, keep_length=True),
]


def weights(rule, grad) -> torch.Tensor:
    found = rule.weights(grad)
    assert found is not None
    return found


@given(
    tasks=st.integers(1, 5),
    batch=st.integers(1, 5),
    d=st.integers(1, 5),
    powers=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    common=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_dense_formula(tasks, batch, d, powers, common, seed) -> None:
    grad = gradient_moments(torch.Generator().manual_seed(seed), tasks, batch, d)
    power = [powers[0]] * tasks if common else powers[:tasks]
    alpha = precision_weights(grad.variance, power)
    rule = PrecisionWeighted.paper(powers[0] if common else power)
    close(weights(rule, grad), alpha)
    close(rule(grad), (alpha * grad.mean).sum(0))
    result = rule.aggregate(grad)
    close(result.direction, (alpha * grad.mean).sum(0))
    close(result.effective_tasks, (1 / alpha.square().sum(0)).mean())
    assert result.jitter is None


def test_powers_by_name_follow_the_heads(rng) -> None:
    a, b = gradient_moments(rng, tasks=2), gradient_moments(rng, tasks=3)
    joint = cat({"a": a, "b": b})
    alpha = precision_weights(joint.variance, [0.9, 0.9, 0.2, 0.2, 0.2])
    close(weights(PrecisionWeighted.paper({"b": 0.2, "a": 0.9}), joint), alpha)
    close(weights(PrecisionWeighted.paper([0.9, 0.9, 0.2, 0.2, 0.2]), joint), alpha)
    even = precision_weights(joint.variance, [0.4] * 5)
    close(weights(PrecisionWeighted.paper({"a": 0.4, "b": 0.4}), joint), even)


def test_cat_stacks_and_remembers(rng) -> None:
    observed = torch.rand(3, 4, generator=rng) < 0.5
    a, b = gradient_moments(rng, tasks=2), gradient_moments(rng, tasks=3, observed=observed)
    joint = cat({"a": a, "b": b})
    assert joint.groups == {"a": slice(0, 2), "b": slice(2, 5)}
    assert torch.equal(joint.mean, torch.cat([a.mean, b.mean]))
    assert torch.equal(joint.variance, torch.cat([a.variance, b.variance]))
    assert torch.equal(joint.observed, torch.cat([torch.ones(2, 4, dtype=torch.bool), observed]))
    assert cat({"a": a}).groups == {"a": slice(0, 2)}
    with pytest.raises(errors.ShapeError, match="'b'"):
        cat({"a": a, "b": gradient_moments(rng, batch=5)})
    with pytest.raises(errors.SettingError, match="nothing to join"):
        cat({})


@pytest.mark.parametrize("resolution", ["dimension", "task"])
@pytest.mark.parametrize("power", [1.0, [0.9, 0.3, 0.6]], ids=str)
def test_coarser_resolutions_average_the_variance(rng, resolution, power) -> None:
    grad = gradient_moments(rng)
    averaged = grad.variance.mean(1, keepdim=True)
    if resolution == "task":
        averaged = averaged.mean(2, keepdim=True)
    powers = power if isinstance(power, list) else [power] * 3
    alpha = precision_weights(averaged, powers).expand(3, 4, 5)
    rule = PrecisionWeighted(power, resolution=resolution)
    close(weights(rule, grad), alpha)
    close(rule(grad), (alpha * grad.mean).sum(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_variances_in_one_batch(dtype) -> None:
    """1e-30 beside 1e+30, with powers that differ: finite, and right where it can be said."""
    variance = torch.tensor([1e-30, 1e30, 1.0], dtype=dtype).reshape(3, 1, 1)
    grad = GradientDistribution(torch.ones(3, 1, 1, dtype=dtype), variance)
    alpha = weights(PrecisionWeighted.paper(1.0), grad).flatten().double()
    close(alpha, torch.tensor([1.0, 0.0, 0.0]).double(), 1e-6)
    for power in ([0.9, 0.1, 0.5], [1.0, 0.0, 0.5], 0.5, 0.01):
        powers = power if isinstance(power, list) else [power] * 3
        alpha = weights(PrecisionWeighted.paper(power), grad).double()
        expected = precision_weights(variance.double(), powers)
        torch.testing.assert_close(alpha, expected, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("power", [1.0, 0.3, [1.0, 0.5, 0.2]], ids=str)
def test_tasks_without_variance_share_the_weight(rng, power) -> None:
    grad = gradient_moments(rng)
    grad.variance[0, 1] = 0
    grad.variance[2, 1, 0] = 0
    alpha = weights(PrecisionWeighted.paper(power), grad)
    assert alpha[:, 1, 0].tolist() == [0.5, 0, 0.5]
    assert alpha[:, 1, 1].tolist() == [1, 0, 0]
    powers = power if isinstance(power, list) else [power] * 3
    rest = [0, 2, 3]
    close(alpha[:, rest], precision_weights(grad.variance[:, rest], powers))


def test_all_without_variance_is_the_mean(rng) -> None:
    grad = gradient_moments(rng)
    grad.variance.zero_()
    close(PrecisionWeighted.paper()(grad), grad.mean.mean(0))


def test_power_zero_is_the_mean_and_never_reads_the_variance(rng) -> None:
    grad = gradient_moments(rng)
    poisoned = GradientDistribution(grad.mean, torch.full_like(grad.variance, torch.nan))
    rule = PrecisionWeighted.paper(0.0)
    close(rule(poisoned), grad.mean.mean(0))
    close(weights(rule, poisoned), torch.full((3, 4, 5), 1 / 3, dtype=torch.float64))
    zeros = GradientDistribution(grad.mean, torch.zeros_like(grad.variance))
    close(PrecisionWeighted.paper([0.0, 0.0, 0.0])(zeros), grad.mean.mean(0))


def test_power_zero_of_one_task_never_reads_its_variance(rng) -> None:
    grad = gradient_moments(rng)
    variance = grad.variance.clone()
    variance[1] = torch.nan
    got = weights(
        PrecisionWeighted.paper([0.7, 0.0, 0.2]), GradientDistribution(grad.mean, variance)
    )
    variance[1] = 1.0
    close(got, precision_weights(variance, [0.7, 0.0, 0.2]))


@pytest.mark.parametrize("rule", ALL, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(exponent=st.integers(-6, 6), seed=st.integers(0, 99))
def test_all_losses_times_c_scale_the_direction_by_c(rule, dtype, exponent, seed) -> None:
    grad = gradient_moments(torch.Generator().manual_seed(seed), dtype=dtype)
    c = 10.0**exponent
    scaled = GradientDistribution(grad.mean * c, grad.variance * c**2)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(rule(scaled) / c, rule(grad), rtol=tolerance, atol=tolerance)
    assert rule(scaled).abs().max() > 0


def test_powers_that_differ_depend_on_the_units(rng) -> None:
    """What the documentation warns of; were it false, the warning should go."""
    grad = gradient_moments(rng)
    rule = PrecisionWeighted.paper([0.9, 0.5, 0.1])
    scaled = GradientDistribution(grad.mean * 1e3, grad.variance * 1e6)
    assert not torch.allclose(rule(scaled) / 1e3, rule(grad), rtol=1e-2)


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_order_of_tasks_and_examples_does_not_matter(rng, rule) -> None:
    grad = gradient_moments(rng)
    turn = torch.tensor([2, 0, 1])
    turned = GradientDistribution(grad.mean[turn], grad.variance[turn])
    close(rule(turned), rule(grad))
    close(weights(rule, turned), weights(rule, grad)[turn])
    rows = torch.tensor([3, 1, 0, 2])
    shuffled = GradientDistribution(grad.mean[:, rows], grad.variance[:, rows])
    close(rule(shuffled), rule(grad)[rows])


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_one_task_and_equal_tasks(rng, rule) -> None:
    one = gradient_moments(rng, tasks=1)
    close(rule(one), one.mean[0])
    assert rule.aggregate(one).effective_tasks.item() == pytest.approx(1)
    equal = GradientDistribution(one.mean.expand(4, -1, -1), one.variance.expand(4, -1, -1))
    times = 4 if rule.reduction == "sum" else 1
    close(rule(equal), one.mean[0] * times)
    assert rule.aggregate(equal).effective_tasks.item() == pytest.approx(4)


def test_mean_and_sum(rng) -> None:
    grad = gradient_moments(rng)
    close(Mean()(grad), grad.mean.mean(0))
    close(Sum()(grad), grad.mean.sum(0))
    assert Mean.reduction == "mean"
    assert Sum.reduction == "sum"
    assert PrecisionWeighted.reduction == "mean"
    close(weights(Sum(), grad), torch.ones(3, 4, 5).double())
    assert Sum().aggregate(grad).effective_tasks.item() == pytest.approx(3)


@pytest.mark.parametrize("power", [1.0, 0.0, 0.6, [0.0, 0.5, 1.0]], ids=str)
def test_missing_targets_get_no_weight(rng, power) -> None:
    """An example's weights sum to its observed share; a task's gradient counts B / n_t times."""
    observed = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 1]], dtype=torch.bool)
    grad = gradient_moments(rng, observed=observed)
    powers = power if isinstance(power, list) else [power] * 3
    alpha = precision_weights(grad.variance.where(observed[..., None], 1.0), powers, observed)
    rule = PrecisionWeighted.paper(power)
    close(weights(rule, grad), alpha)
    close(weights(rule, grad).sum(0)[:, 0], torch.tensor([2 / 3, 2 / 3, 0, 1], dtype=torch.float64))
    scale = torch.tensor([4 / 2, 4 / 3, 4 / 2], dtype=torch.float64)[:, None, None]
    direction = rule(grad)
    close(direction, (alpha * scale * grad.mean).sum(0))
    assert (direction[2] == 0).all()


@pytest.mark.parametrize("rule", [Mean(), Sum(), PrecisionWeighted.paper()], ids=str)
def test_missing_targets_keep_a_point_posterior_equal_to_scalarisation(rng, rule) -> None:
    """No variance: direction / B is the gradient of the mean (or sum) of the tasks' own means."""
    observed = torch.rand(3, 8, generator=rng) < 0.5
    observed[1] = False  # and one task has no target at all
    grad = gradient_moments(rng, batch=8, observed=observed)
    grad = GradientDistribution(grad.mean, torch.zeros_like(grad.variance), observed)
    counts = observed.sum(1).clamp(min=1).double()
    expected = (grad.mean / counts[:, None, None]).sum(0)
    if rule.reduction == "mean":
        expected = expected / 3
    close(rule(grad) / 8, expected)


def test_missing_targets_are_left_out_of_averages(rng) -> None:
    observed = torch.rand(3, 6, generator=rng) < 0.6
    grad = gradient_moments(rng, batch=6, observed=observed)
    for resolution in ("dimension", "task"):
        averaged = torch.stack([grad.variance[t][observed[t]].mean(0) for t in range(3)])[:, None]
        if resolution == "task":
            averaged = averaged.mean(2, keepdim=True)
        alpha = precision_weights(averaged, [0.8] * 3) * observed[..., None]
        rule = PrecisionWeighted(0.8, resolution=resolution)
        close(weights(rule, grad), alpha.expand(3, 6, 5))


def test_effective_number_of_tasks() -> None:
    alpha = torch.tensor([[0.5, 1.0, 2.0, 0.0], [0.5, 0.0, 1.0, 0.0]])
    got = aggregation.effective_tasks(alpha)
    close(got[:3], torch.tensor([2.0, 1.0, 9 / 5]), 1e-6)
    assert got[3].isnan()
    result = aggregation.Aggregated(torch.zeros(4, 1), alpha[..., None])
    assert result.effective_tasks.item() == pytest.approx((2 + 1 + 1.8) / 3)
    assert aggregation.Aggregated(torch.zeros(4, 1)).effective_tasks is None


def test_a_rule_of_ones_own_needs_only_aggregate(rng) -> None:
    class Median(aggregation.Aggregation):
        def aggregate(self, grad):
            return aggregation.Aggregated(grad.mean.median(0).values)

    grad = gradient_moments(rng)
    assert torch.equal(Median()(grad), grad.mean.median(0).values)
    assert Median().weights(grad) is None


@pytest.mark.parametrize("missing", [False, True])
def test_kept_length_is_that_of_equal_weights(rng, missing) -> None:
    """Drawn updates of the tasks that are compared, in root mean square; ratios as without."""
    observed = torch.rand(4, 6, generator=rng) < 0.6 if missing else None
    a = gradient_moments(rng, 2, 6, 3, observed=None if observed is None else observed[:2])
    b = gradient_moments(rng, 2, 6, 3, observed=None if observed is None else observed[2:])
    joint = cat({"a": a, "b": b})
    power = {"a": 0.8, "b": 0.0}
    kept = weights(PrecisionWeighted(power, keep_length=True), joint).amax((1, 2))
    plain = weights(PrecisionWeighted(power), joint).amax((1, 2))
    close(kept[0] / kept[1], plain[0] / plain[1])
    close(kept[2:], plain.new_full((2,), 0.25))
    count = a.labelled().sum(1)[:, None, None]
    draws = torch.randn(40_000, 2, 6, 3, generator=rng).double() * a.variance.sqrt() + a.mean
    equal, found = (
        (alpha[:, None, None] * draws / count).sum(1).square().sum((1, 2)).mean()
        for alpha in (torch.full_like(kept[:2], 0.25), kept[:2])
    )
    assert float(found / equal) == pytest.approx(1, abs=0.02)


def test_moments_in_half_precision_are_weighed(rng) -> None:
    grad = gradient_moments(rng, 3, 6, 4)
    half = GradientDistribution(grad.mean.half(), grad.variance.half())
    half.variance[0] = 0
    assert weights(PrecisionWeighted(), half).amax((1, 2)).tolist() == [1, 0, 0]


def test_kept_length_of_what_is_certainly_nothing(rng) -> None:
    zeros = torch.zeros(2, 3, 4).double()
    rule = PrecisionWeighted(0.8, keep_length=True)
    close(weights(rule, GradientDistribution(zeros, zeros)), torch.full_like(zeros, 0.5))
    nearly = torch.tensor([1e-45, 1.0])[:, None, None]  # whose ratio float32 does not hold
    found = rule.aggregate(GradientDistribution(nearly, torch.tensor([0.0, 1.0])[:, None, None]))
    assert found.weights is not None
    assert found.weights.isfinite().all()
    assert found.weights[1] == 0
    with pytest.raises(errors.SettingError, match="one weight per task"):
        PrecisionWeighted(0.8, resolution="example", keep_length=True)
