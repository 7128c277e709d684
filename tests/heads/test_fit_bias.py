"""Biases start at the mode of a constant's posterior, by SciPy and in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from likelihoods import F64, NAMES, ONE, log_density, make, targets_of
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
            return 0.5 * u * u / 100 - float(np.sum(values))

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


def test_a_mean_under_the_prior() -> None:
    head = heads.Gaussian(4, 2, bias=True, standardise=False).double()
    y = torch.tensor([[1.0, -3.0], [2.0, 5.0], [6.0, 1.0]], dtype=F64)
    heads.fit_bias(head, y)
    torch.testing.assert_close(biases(head), y.sum(0) / 3.01)


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
