"""Ordinal classes by the probit, far out in either tail, against 60 to 200 digits."""

from __future__ import annotations

import pytest
import torch

from bayesagg_pyro import gradients, heads, posteriors

mp = pytest.importorskip("mpmath")

U = [0.0, 0.3, -0.7, 3.0, -5.0, 8.0, -12.0, 30.0, -45.0, 300.0, -1e3, 1e4, 1e6, 1e8, -1e8]
CUTS = [
    [-1.0, 0.5, 2.0],
    [-1e-5, 0.0, 1e-5],
    [-30.0, -29.0, 40.0],
    [0.0, 1e-9, 1e-8],
    [-1e3, 1e-2, 1e4],
]


def truth(u: float, low: float | None, high: float | None):
    """−log P(low < u + ε < high) and its two derivatives in u."""

    def upper(x):
        return mp.erfc(x / mp.sqrt(2)) / 2

    def density(x):
        return mp.mpf(0) if x is None else mp.npdf(x)

    a = None if low is None else mp.mpf(low) - mp.mpf(u)
    b = None if high is None else mp.mpf(high) - mp.mpf(u)
    if a is None:
        p = upper(-b)
    elif b is None:
        p = upper(a)
    else:
        p = upper(a) - upper(b) if a + b > 0 else upper(-b) - upper(-a)
    slope = (density(b) - density(a)) / p
    moment = (b or 0) * density(b) - (a or 0) * density(a)
    return -mp.log(p), slope, moment / p + slope**2


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance", "least"), [(torch.float64, 2e-8, 1e-290), (torch.float32, 3e-3, 1e-36)]
)
def test_loss_slope_and_curvature(cuts, dtype, tolerance, least) -> None:
    head = heads.Ordinal(1, 4, cutpoints=cuts, link="probit").to(dtype)
    edges = [None, *head.cutpoints[0].double().tolist(), None]
    for y in range(4):
        u = torch.tensor(U, dtype=dtype)[:, None].requires_grad_()
        labels = torch.full_like(u, y, dtype=torch.long)
        loss = head.negative_log_prob(u, labels)
        (automatic,) = torch.autograd.grad(loss.sum(), u)
        slope, curvature = head.nll_derivatives(u.detach(), labels)
        for i, at in enumerate(u.detach()[:, 0].tolist()):
            with mp.workdps(60 if abs(at) < 1e3 else 200):
                expected = truth(at, edges[y], edges[y + 1])
            for got, value in zip(
                (loss, automatic, slope, curvature),
                (expected[0], expected[1], expected[1], expected[2]),
                strict=True,
            ):
                number = got[i, 0].item()
                if abs(value) > least:
                    assert abs(number / float(value) - 1) < tolerance, (y, at)
                else:
                    assert abs(number) < 1e-30, (y, at)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [-1e8, -60.0, -9.0, 0.0, 9.0, 30.0, 110.0, 1e8])
@pytest.mark.parametrize("std", [1e-3, 1.0, 1e3])
def test_no_tail_reads_as_certainty(dtype, mean, std) -> None:
    """An uncertain gradient has a variance above 0, however small."""
    p = posteriors.Gaussian(
        torch.full((1, 1), mean, dtype=torch.float64),
        torch.full((1, 1, 1), std**-2, dtype=torch.float64),
    )
    makers = [
        heads.Ordinal(1, 3, cutpoints=[0.0, 1.0], link="probit", bias=False),
        heads.Ordinal(1, 3, cutpoints=[0.0, 1.0], bias=False),
        heads.Bernoulli(1, bias=False),
        heads.NegativeBinomial(1, dispersion=0.5, bias=False),
        heads.StudentT(1, bias=False),
    ]
    for head in makers:
        for y in (0, 1):
            label = torch.tensor([[y]])
            label = label if head.target_kind == "class" else label.to(dtype)
            grad = gradients.distribution(head.to(dtype), p, torch.ones(1, 1, dtype=dtype), label)
            assert grad.variance.item() > 0, (head, y)
            assert grad.variance.isfinite().all()
            assert grad.mean.isfinite().all()


def test_moments_of_a_confident_class_lie_where_the_integrand_does() -> None:
    """E f² = E exp(−u²) is carried by u far below the posterior's mean."""
    head = heads.Ordinal(1, 2, cutpoints=[0.0], link="probit", bias=False).double()
    p = posteriors.Gaussian(
        torch.full((1, 1), 12.0, dtype=torch.float64),
        torch.full((1, 1, 1), 4.0, dtype=torch.float64),
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    grad = gradients.distribution(head, p, one, one.long())
    with mp.workdps(40):

        def density(u):
            return mp.npdf(u, 12, mp.mpf("0.5"))

        def g(u):
            return -u * mp.npdf(u) / mp.ncdf(u)

        cuts = [-8, -2, 2, 4, 6, 7, 8, 9, 10, 11, 12, 14, 20]
        first = mp.quad(lambda u: density(u) * g(u), cuts)
        second = mp.quad(lambda u: density(u) * (g(u) - first) ** 2, cuts)
    assert abs(grad.mean.item() / float(first) - 1) < 1e-3
    assert abs(grad.variance.item() / float(second) - 1) < 1e-3
