"""Settings and inputs that an aggregation refuses."""

from __future__ import annotations

import pytest
import torch
from oracles import gradient_moments

from bayesagg_pyro import BayesAgg, errors, heads
from bayesagg_pyro.aggregation import PerSample, PrecisionWeighted
from bayesagg_pyro.gradients import GradientDistribution, cat


@pytest.mark.parametrize(
    "power",
    [1.5, -0.1, float("nan"), float("inf"), [0.5, 1.2], {"a": 0.5, "b": -1.0}, "0.5", None],
    ids=str,
)
def test_powers_outside_their_range_are_refused(power) -> None:
    with pytest.raises(errors.BayesAggError, match="power"):
        PrecisionWeighted(power)


@pytest.mark.parametrize(
    "settings",
    [
        {"covariance": "dense"},
        {"resolution": "batch"},
        {"covariance": "full", "power": 0.5},
        {"covariance": "full", "power": [1.0, 0.9]},
        {"covariance": "full", "resolution": "task"},
        {"covariance": "full", "floor": 0.5},
        {"covariance": "full", "max_ratio": 3.0},
        *({"floor": value} for value in (0.0, -1.0, float("inf"), float("nan"))),
        *({"max_ratio": value} for value in (0.5, float("inf"), float("nan"))),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(settings) -> None:
    with pytest.raises(errors.SettingError, match=r"covariance|resolution|floor|max_ratio"):
        PrecisionWeighted(**settings)


@pytest.mark.parametrize(
    "power", [[0.5], [0.5] * 4, [], {"a": 0.5}, {"a": 0.5, "b": 1, "c": 1}, {}]
)
def test_powers_must_match_the_tasks(rng, power) -> None:
    joint = cat({"a": gradient_moments(rng, tasks=2), "b": gradient_moments(rng, tasks=1)})
    with pytest.raises(errors.TaskError):
        PrecisionWeighted(power)(joint)


@pytest.mark.parametrize("power", [[0.5], [0.5] * 4, {"a": 0.5}, {"a": 0.5, "c": 1.0}])
def test_an_engine_is_not_made_with_powers_of_other_tasks(power) -> None:
    model = {"a": heads.Bernoulli(3, 2), "b": heads.Gaussian(3)}
    for made in (PrecisionWeighted(power), PerSample(PrecisionWeighted(power))):
        with pytest.raises(errors.TaskError, match="powers are given for"):
            BayesAgg(model, made)
    BayesAgg(model, PrecisionWeighted([0.5, 0.6, 0.7]))  # which left them as they were


def test_powers_by_name_need_names(rng) -> None:
    with pytest.raises(errors.TaskError, match="cat"):
        PrecisionWeighted({"a": 0.5})(gradient_moments(rng))


@pytest.mark.parametrize(
    ("mean", "variance", "observed"),
    [
        ((3, 4), (3, 4), None),
        ((3, 4, 5), (3, 4, 1), None),
        ((3, 4, 5), (3, 4, 5), (4, 3)),
    ],
)
def test_moments_must_fit_each_other(mean, variance, observed) -> None:
    mask = None if observed is None else torch.ones(observed, dtype=torch.bool)
    with pytest.raises(errors.ShapeError):
        GradientDistribution(torch.zeros(mean), torch.zeros(variance), mask)


def test_moments_alone_have_no_covariance_and_no_samples(rng) -> None:
    grad = gradient_moments(rng)
    with pytest.raises(errors.StateError, match="covariance"):
        _ = grad.covariance_matrix
    with pytest.raises(errors.StateError, match="sampled"):
        grad.sample((3,))
    with pytest.raises(errors.StateError, match="covariance"):
        PrecisionWeighted(covariance="full")(grad)
