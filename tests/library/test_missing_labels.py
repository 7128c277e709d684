"""Targets with holes, from the posterior to the update, against loops over tasks."""

from __future__ import annotations

import pytest
import torch
from oracles import close, moments, posterior, precision_weights
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads, priors

NAN = float("nan")


def holes(rng, n: int, tasks: int) -> torch.Tensor:
    """Observed or not; one example with no target at all, one task seen once."""
    observed = torch.rand(n, tasks, generator=rng) < 0.6
    observed[3] = False
    observed[:, 1] = False
    observed[5, 1] = True
    return observed


def world(rng, missing: str = "error", **settings):
    backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
    head = heads.Gaussian(5, tasks=3, bias=True, noise_scale=0.5, missing=missing)
    mtl = ba.BayesAgg({"a": head}, prior=priors.FullData(0.5), **settings).double()
    x = torch.randn(16, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(16, 3, generator=rng, dtype=torch.float64)
    return backbone, head, mtl, x, y, holes(rng, 16, 3)


def give(style: str, y: torch.Tensor, observed: torch.Tensor):
    """NaN in the tensor, or a mask over whatever stands in the holes."""
    if style == "nan":
        return torch.where(observed, y, NAN)
    return torch.where(
        observed, y, {"mask": 0.0, "mask over NaN": NAN, "mask over 1e30": 1e30}[style]
    ), observed


STYLES = ["nan", "mask", "mask over NaN", "mask over 1e30"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_epoch_and_a_step_equal_the_loop_over_tasks(rng, style, reduction) -> None:
    rule = aggregation.PrecisionWeighted.paper(0.8)
    backbone, head, mtl, x, y, observed = world(
        rng, "nan" if style == "nan" else "error", aggregation=rule, reduction=reduction
    )
    given = give(style, y, observed)

    losses = mtl.backward(backbone(x), {"a": given})  # warm-up
    h = backbone(x)
    design = torch.cat([h, torch.ones(16, 1).double()], 1)
    errors_ = (y - design @ head.weight.T) ** 2
    expected = torch.stack([errors_[observed[:, t], t].mean() for t in range(3)])
    close(losses["a"], expected.detach())
    variables = [*backbone.parameters(), head.weight]
    for p, g in zip(variables, torch.autograd.grad(expected.sum(), variables), strict=True):
        close(p.grad, g)

    mtl.update_prior()
    mtl.start_bayes()
    design = design.detach()
    eye = torch.eye(6).double().expand(3, 6, 6)
    prior = posterior(design, y, [0.5] * 3, torch.zeros(3, 6).double(), 0.5 * eye, observed)
    close(mtl.priors()["a"].mean, prior[0])
    close(mtl.priors()["a"].covariance_matrix, prior[1])

    backbone.zero_grad()
    losses = mtl.backward(backbone(x), {"a": given})
    m, s = posterior(design, y, [0.5] * 3, *prior, observed)
    mean, cov = moments(m, s, design, y, 5)
    variance = cov.diagonal(dim1=-2, dim2=-1)
    alpha = precision_weights(variance, [0.8] * 3, observed.T)
    direction = torch.zeros(16, 5).double()
    for t in range(3):
        direction += alpha[t] * mean[t] * observed[:, t, None] * 16 / observed[:, t].sum()
    assert (direction[3] == 0).all()
    h = backbone(x)
    factor = 3 if reduction == "sum" else 1
    wanted = torch.autograd.grad(h, list(backbone.parameters()), direction * factor / 16)
    for p, g in zip(backbone.parameters(), wanted, strict=True):
        close(p.grad, g)
    predicted = (y - design @ prior[0].T) ** 2
    expected = torch.stack([predicted[observed[:, t], t].mean() for t in range(3)])
    close(losses["a"], expected)


def test_a_step_without_any_target_moves_nothing(rng) -> None:
    backbone, _, mtl, x, y, observed = world(rng, "nan")
    mtl.backward(backbone(x), {"a": give("nan", y, observed)})
    mtl.update_prior()
    for _ in range(2):
        backbone.zero_grad()
        losses = mtl.backward(backbone(x), {"a": torch.full_like(y, NAN)})
        assert losses["a"].isnan().all()
        for p in backbone.parameters():
            assert (p.grad == 0).all()
        before = mtl.priors()["a"]
        mtl.start_bayes()
    mtl.backward(backbone(x), {"a": give("nan", y, observed)})
    mtl.update_prior()
    close(mtl.priors()["a"].mean, before.mean)  # the empty batch added nothing


def test_one_head_with_holes_beside_one_without(rng) -> None:
    """Each head's own losses; the weights of an example sum to its observed share of all tasks."""
    backbone = nn.Linear(4, 5).double()
    x = torch.randn(8, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(8, 3, generator=rng, dtype=torch.float64)
    observed = torch.rand(8, 2, generator=rng) < 0.5
    mtl = ba.BayesAgg(
        {"a": heads.Gaussian(5, tasks=2), "b": heads.Gaussian(5)},
        aggregation.PrecisionWeighted.paper(),
        keep_gradients=True,
    ).double()
    targets = {"a": (y[:, :2], observed), "b": y[:, 2]}  # [B] where there is one task
    mtl.backward(backbone(x), targets)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(backbone(x), targets)
    weights = mtl.info.aggregated.weights
    share = (observed.sum(1) + 1) / 3
    close(weights.sum(0), share.double()[:, None].expand(8, 5), 1e-6)
    assert (weights[:2].permute(1, 0, 2)[~observed] == 0).all()
    assert 1 <= mtl.info.effective_tasks <= 3


def test_nan_is_an_error_unless_said_otherwise(rng) -> None:
    backbone, _, mtl, x, y, observed = world(rng)
    with pytest.raises(errors.NonFiniteError, match="missing='nan'"):
        mtl.backward(backbone(x), {"a": give("nan", y, observed)})


@pytest.mark.parametrize("style", ["nan", "mask"])
def test_infinity_is_always_an_error(rng, style) -> None:
    backbone, _, mtl, x, y, observed = world(rng, "nan")
    y[5, 1] = float("inf")
    with pytest.raises(errors.NonFiniteError, match="inf"):
        mtl.backward(backbone(x), {"a": give(style, y, observed)})


def test_mask_and_nan_together(rng) -> None:
    """With missing='nan' both a mask and NaN take a target out."""
    head = heads.Gaussian(5, tasks=3, missing="nan")
    y = torch.randn(4, 3, generator=rng)
    y[0, 0] = NAN
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 1] = False
    parsed = head.parse_targets((y, mask), 4)
    expected = torch.ones(4, 3, dtype=torch.bool)
    expected[0, 0] = expected[1, 1] = False
    assert torch.equal(parsed.mask, expected)
    assert parsed.values.isfinite().all()


def test_deferred_validation_knows_missing_from_bad(rng) -> None:
    backbone, _, mtl, x, y, observed = world(rng, "nan", validate="deferred")
    mtl.backward(backbone(x), {"a": give("nan", y, observed)})
    mtl.raise_deferred()
    y[5, 1] = float("inf")
    mtl.backward(backbone(x), {"a": give("nan", y, observed)})
    with pytest.raises(errors.NonFiniteError):
        mtl.raise_deferred()
