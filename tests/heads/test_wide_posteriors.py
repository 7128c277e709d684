"""Moments by quadrature where the posterior is much wider, or narrower, than the likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayesagg_pyro import errors, gradients, heads, posteriors
from bayesagg_pyro.quadrature import Transition

F64 = torch.float64
CENTRE = 0.7


def fine_sum(f: Callable[[Tensor], Tensor], std: float, bend: float, width: float):
    """E and Var of w f(w), w ~ N(CENTRE, std²), by 200,001 nodes, dense around the bend."""
    b, omega = (bend - CENTRE) / std, 0.2 * min(width / std, 1.0)
    low, high = math.asinh((-14 - b) / omega), math.asinh((14 - b) / omega)
    t = torch.linspace(low, high, 200_001, dtype=F64)
    z = b + omega * t.sinh()
    p = t.cosh() * (-0.5 * z.square()).exp()
    p = p / p.sum()
    g = f(CENTRE + std * z) * (CENTRE + std * z)
    mean = (p * g).sum()
    return mean, (p * (g - mean).square()).sum()


def found(head: heads.Head, std: float, y: float, **settings) -> gradients.GradientDistribution:
    p = posteriors.Gaussian(
        torch.full((1, 1), CENTRE, dtype=F64), torch.full((1, 1, 1), std**-2, dtype=F64)
    )
    return gradients.distribution(
        head,
        p,
        torch.ones(1, 1, dtype=F64),
        torch.tensor([[y]], dtype=F64),
        estimator=gradients.Quadrature(**settings),
    )


def off(grad: gradients.GradientDistribution, mean: Tensor, variance: Tensor) -> tuple[float, ...]:
    """True and stated errors: of the mean in standard deviations, of the variance relatively."""
    error = grad.moment_error
    return (
        ((grad.mean - mean).abs() / variance.sqrt()).item(),
        (grad.variance / variance - 1).abs().item(),
        (error.mean / variance.sqrt()).item(),
        (error.variance / variance).item(),
    )


@pytest.mark.parametrize("ratio", [1e-3, 1.0, 30.0, 300.0, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("df", [0.1, 4.0, 1e9])
def test_student_t(df, ratio) -> None:
    scale = 0.01
    head = heads.StudentT(1, df=df, scale=scale, bias=False).double()
    for y in (0.2, -3.0, CENTRE, 1e3):

        def slope(u: Tensor, y: float = y) -> Tensor:
            return (df + 1) * (u - y) / (df * scale**2 + (u - y).square())

        expected = fine_sum(slope, scale * ratio, y, scale * df**0.5)
        mean, variance, stated_mean, stated_variance = off(found(head, scale * ratio, y), *expected)
        assert mean < 1e-5, y
        assert variance < 2e-4, y
        # What the stated error is for; 1e-7 lies beyond the rule's range, which no rule sees.
        assert mean < stated_mean + 1e-7
        assert variance < stated_variance + 1e-6
        assert stated_variance < 1e-3


@pytest.mark.parametrize("std", [0.1, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("width", [1.0, 1e-2])
def test_a_robust_loss_that_says_nothing_of_where_it_bends(std, width) -> None:
    class Robust(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return ((outputs - targets).square() + width**2).sqrt()

    for y in (0.2, -30.0):
        grad = found(Robust(1, bias=False).double(), std, y)
        expected = fine_sum(
            lambda u, y=y: (u - y) / ((u - y).square() + width**2).sqrt(), std, y, width
        )
        mean, variance, stated_mean, stated_variance = off(grad, *expected)
        assert mean < min(1e-3, stated_mean + 1e-7)
        assert variance < min(1e-3, stated_variance + 1e-6)


@pytest.mark.parametrize("std", [30.0, 300.0])
def test_a_kink_is_stated_and_a_tolerance_is_met(std) -> None:
    """Huber's loss has a derivative with corners, on which no rule of this kind is exponential."""

    class Huber(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return torch.nn.functional.huber_loss(outputs, targets, reduction="none")

        def transition(self, targets: Tensor):
            return targets, 1.0

    head = Huber(1, bias=False).double()
    mean, variance = fine_sum(lambda u: (u - 0.2).clamp(-1, 1), std, 0.2, 1.0)
    rough = off(found(head, std, 0.2), mean, variance)
    assert rough[0] < rough[2] + 1e-7
    assert rough[1] < rough[3] + 1e-6
    close = off(found(head, std, 0.2, tolerance=1e-5), mean, variance)
    assert max(close[2:]) <= 1e-5
    assert max(close[:2]) < 1e-5
    assert max(rough[2:]) > 1e-5  # or the tolerance would have had nothing to do


@pytest.mark.parametrize("std", [30.0, 300.0, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_a_wide_logistic(std, y) -> None:
    head = heads.Bernoulli(1, bias=False).double()
    expected = fine_sum(lambda u: torch.sigmoid(u) - y, std, 0.0, 1.0)
    mean, variance, _, stated = off(found(head, std, y), *expected)
    assert mean < 5e-4
    assert variance < min(5e-4, stated + 1e-6)


@pytest.mark.parametrize(("width", "std"), [(0.3, 30.0), (1.0, 3.0)])
def test_a_transition_that_promises_too_much_is_found_out(width, std) -> None:
    """Bends narrower than said, and exponential growth that was not mentioned."""

    class Wrong(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            r = (outputs - targets) / width
            return r.exp() if std == 3.0 else (r.square() + 1).sqrt()

        def transition(self, targets: Tensor):
            return Transition(targets, 2.0, growth=0.0, nodes=16)

    def slope(u: Tensor) -> Tensor:
        r = (u - 0.2) / width
        return (r.exp() if std == 3.0 else r / (r.square() + 1).sqrt()) / width

    grad = found(Wrong(1, bias=False).double(), std, 0.2)
    _, variance, _, stated = off(grad, *fine_sum(slope, std, 0.2, width))
    assert variance > 1e-4  # there is something to state
    assert variance < 2 * stated


def test_a_tolerance_out_of_reach_is_told() -> None:
    class Step(heads.Gaussian):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets - 0.3).abs()

    head = Step(1, bias=False, name="step").double()
    with pytest.warns(RuntimeWarning, match="step.*4096.*asked for"):
        found(head, 1.0, 0.2, tolerance=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found(head, 1.0, 0.2, tolerance=0.1)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(errors.SettingError, match="tolerance"):
            gradients.Quadrature(tolerance=bad)


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize("gap", [1.0, 20.0, 1000.0])
def test_a_class_between_two_cut_points(link, gap) -> None:
    """The derivative bends at either one, however far apart they are beside the link's width."""
    z = torch.linspace(-10, 10, 400_001, dtype=F64)
    p = (-0.5 * z.square()).exp()
    p = p / p.sum()
    cuts = [-0.5 * gap, 0.5 * gap]
    head = heads.Ordinal(1, 3, cutpoints=cuts, link=link, bias=False).double()
    for std in (0.1 * gap, gap, 10 * gap):
        for y in range(3):
            label = torch.tensor([[y]])
            grad = gradients.distribution(
                head,
                posteriors.Gaussian(
                    torch.full((1, 1), CENTRE, dtype=F64),
                    torch.full((1, 1, 1), std**-2, dtype=F64),
                ),
                torch.ones(1, 1, dtype=F64),
                label,
            )
            u = CENTRE + std * z
            g = head.loss_derivative(u[:, None], label)[:, 0] * u
            first = (p * g).sum()
            mean, variance, _, stated = off(grad, first, (p * (g - first).square()).sum())
            assert mean < 3e-5
            assert variance < min(5e-4, stated + 1e-6)
