"""Biases start at the mode of a constant's posterior, by SciPy and in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from likelihoods import F64, NAMES, ONE, REAL, log_density, make, targets_of
from scipy import stats
from scipy.optimize import minimize_scalar

from bayesagg_pyro import errors, heads


def biases(head: heads.Head) -> torch.Tensor:
    return head.weight.detach()[:, -1].clone()


@pytest.mark.parametrize("name", [name for name in ONE if not name.startswith("ordinal")])
def test_the_mode_is_scipys(rng, name) -> None:
    head = make(name)
    y = targets_of(rng, name, 50)
    heads.fit_bias(head, y)
    for task in (0, 1):

        def loss(u: float, task: int = task) -> float:
            values = [log_density(name, np.float64(u), float(v), task) for v in y[:, task]]
            prior = 0.0 if name in REAL else 0.5 * u * u / 100
            return prior - float(np.sum(values))

        found = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
        assert biases(head)[task].item() == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ordinal")])
def test_weights_repeat_and_masks_remove(rng, name) -> None:
    y = targets_of(rng, name, 12)
    times = torch.arange(12) % 3
    counted, repeated = make(name), make(name)
    heads.fit_bias(counted, (y, times > 0, times.to(F64).clamp(min=1)))
    rows = torch.repeat_interleave(torch.arange(12), times)
    heads.fit_bias(repeated, y[rows])
    torch.testing.assert_close(biases(counted), biases(repeated), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("tasks", [1, 2])
def test_shares_of_classes(rng, tasks) -> None:
    """The prior is wide; the other weights stay."""
    shares = torch.tensor([0.05, 0.15, 0.8], dtype=F64)
    y = torch.repeat_interleave(torch.arange(3), (shares * 1000).long())
    head = heads.Categorical(4, 3, tasks=tasks).double()
    before = head.weight.detach()[:, :-1].clone()
    heads.fit_bias(head, y if tasks == 1 else y[:, None].expand(-1, tasks))
    found = biases(head).unflatten(0, (tasks, 3)).softmax(-1)
    torch.testing.assert_close(found, shares.expand(tasks, -1), rtol=0.01, atol=0)
    assert torch.equal(head.weight.detach()[:, :-1], before)


#: Of targets of mean `loc` and standard deviation `scale`.
UNITS = [(0.0, 1.0), (2e5, 1e4), (-3e-9, 1e-10), (2e5, 1e-3), (5.0, 1e8)]


@pytest.mark.parametrize(("loc", "scale"), UNITS)
def test_the_maximum_of_real_targets_in_any_units(rng, loc, scale) -> None:
    """A mean, a location by SciPy's one-dimensional search, a mean and a log-variance."""
    z = torch.randn(60, 2, generator=rng, dtype=F64).exp()
    y = loc + scale * (z - z.mean(0)) / z.std(0, correction=0)
    mask = torch.rand(60, 2, generator=rng) < 0.8
    taken = [y[mask[:, task], task].numpy() for task in (0, 1)]
    gaussian = heads.Gaussian(4, 2, bias=True, noise_scale=scale).double()
    student = heads.StudentT(4, 2, bias=True, df=4.0, scale=0.5 * scale).double()
    both = heads.Heteroscedastic(4, 2).double()
    for head in (gaussian, student, both):
        heads.fit_bias(head, (y, mask))
    for task, own in enumerate(taken):

        def loss(u: float, own: np.ndarray = own) -> float:
            return -float(stats.t.logpdf((own - loc) / scale, 4.0, u, 0.5).sum())

        best = minimize_scalar(loss, bounds=(-1, 1), method="bounded", options={"xatol": 1e-9})
        mean, variance = own.mean(), own.var()
        assert abs(biases(gaussian)[task] - mean) < 1e-8 * scale + 2e-16 * abs(loc)  # rounding
        assert abs((biases(student)[task] - loc) / scale - best.x) < 1e-6
        centre, log_variance = biases(both)[2 * task : 2 * task + 2].tolist()
        assert abs(centre - mean) < 1e-6 * scale
        assert log_variance == pytest.approx(np.log(variance), abs=1e-6)


class Duration(heads.OnePredictor):
    """Positive numbers of mean exp(u)."""

    def likelihood(self, outputs):
        return torch.distributions.Exponential((-outputs).exp(), validate_args=True)


def test_the_maximum_of_a_likelihood_of_ones_own(rng) -> None:
    head = Duration(4, 2, bias=True).double()
    y = 1e6 * torch.rand(50, 2, generator=rng, dtype=F64)
    heads.fit_bias(head, y)
    torch.testing.assert_close(biases(head), y.mean(0).log())


def test_real_targets_without_a_maximum() -> None:
    """None at all leave 0; equal ones would ask for no noise."""
    head = heads.Gaussian(4, 2, bias=True, noise_scale=1.0).double()
    heads.fit_bias(head, (torch.full((5, 2), 7.0), torch.tensor([[True, False]] * 5)))
    assert biases(head).tolist() == [7.0, 0.0]
    with pytest.raises(errors.SettingError, match="all targets of a task are equal"):
        heads.fit_bias(heads.Heteroscedastic(4), torch.full((5, 1), 7.0))


def test_one_class_alone_is_finite() -> None:
    head = heads.Bernoulli(4, 2)
    heads.fit_bias(head, torch.tensor([[1.0, 0.0]] * 10_000))
    high, low = biases(head).tolist()
    assert 9 < high < 14
    assert low == pytest.approx(-high)


class Capped(heads.Bernoulli):
    def forward(self, features, weight=None):
        return 5 * torch.tanh(super().forward(features, weight))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (heads.Gaussian(4), "make it with bias=True"),
        (Capped(4), "its outputs are not linear"),
        (heads.Network(torch.nn.Linear(4, 1), heads.Bernoulli(4)), "its outputs are not linear"),
        (heads.Gaussian(4, bias=True), "chooses its units .* standardise=False"),
    ],
    ids=["no bias", "capped", "network", "units"],
)
def test_heads_that_cannot_start_there_refuse(head, reason) -> None:
    with pytest.raises(errors.SettingError, match=reason):
        heads.fit_bias(head, torch.zeros(3, 1))


def test_bad_targets_change_nothing() -> None:
    head = heads.Bernoulli(4)
    before = head.weight.detach().clone()
    with pytest.raises(errors.SettingError, match="target of task 0, example 1, is 2"):
        heads.fit_bias(head, torch.tensor([0.0, 2.0]))
    assert torch.equal(head.weight.detach(), before)
