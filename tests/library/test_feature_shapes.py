"""Features of any shape: a step on tokens or pixels is the step on the same examples as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads

F64 = torch.float64
D = 4
#: {layout: (feature_axis, other axes)}
LAYOUTS = {
    "tokens": (-1, (3, 5)),
    "tokens, from the front": (2, (3, 5)),
    "images": (1, (2, 3, 4)),
    "volumes": (-4, (2, 2, 3, 2)),
    "one example each": (1, (6, 1)),
}


def made(axis: int = -1, **settings: Any) -> ba.BayesAgg:
    torch.manual_seed(0)
    return ba.BayesAgg(
        {
            "depth": heads.Gaussian(D),
            "normal": heads.Gaussian(D, 3, missing="nan"),
            "kind": heads.Categorical(D, 5),
            "edges": heads.Bernoulli(D, 2),
            "parts": heads.Categorical(D, 3, tasks=2),
            "count": heads.Poisson(D),
        },
        feature_axis=axis,
        generator=torch.Generator().manual_seed(0),
        **settings,
    ).double()


def data(rng: torch.Generator, size: int) -> tuple[Tensor, dict[str, Any]]:
    """Rows, with every form of targets."""
    normal = torch.randn(size, 3, generator=rng, dtype=F64)
    normal[torch.rand(size, 3, generator=rng) < 0.3] = torch.nan
    binary = (torch.rand(size, 2, generator=rng) < 0.5).double()
    weight = torch.rand(size, generator=rng, dtype=F64) + 0.5
    return torch.randn(size, D, generator=rng, dtype=F64), {
        "depth": torch.randn(size, generator=rng, dtype=F64),
        "normal": normal,
        "kind": torch.randint(5, (size,), generator=rng),
        "edges": (binary, torch.rand(size, 2, generator=rng) < 0.7, weight),
        "parts": (torch.randint(3, (size, 2), generator=rng), torch.arange(size) > 1),
        "count": torch.randint(4, (size, 1), generator=rng),
    }


def shaped(part: Any, others: tuple[int, ...], axis: int) -> Any:
    """Rows as a user has them: [examples, n] with n on the axis, [examples] without it."""
    if isinstance(part, dict):
        return {name: shaped(one, others, axis) for name, one in part.items()}
    if isinstance(part, tuple):
        return tuple(shaped(one, others, axis) for one in part)
    whole = part.reshape(*others, *part.shape[1:])
    return whole if part.ndim == 1 else whole.movedim(-1, axis).contiguous()


def life(mtl: ba.BayesAgg, features: Tensor, targets: Any) -> list[Tensor]:
    """What a warm-up step and a Bayesian one give, and the posteriors after."""
    found: list[Tensor] = []
    for _ in range(2):
        leaf = features.clone().requires_grad_()
        found += mtl.backward(leaf, targets).values()
        assert leaf.grad is not None
        found.append(leaf.grad)
        mtl.update_prior()
        mtl.start_bayes()
    return found + [prior.mean for prior in mtl.priors().values()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_is_that_of_the_rows(name: str, rng: torch.Generator) -> None:
    axis, others = LAYOUTS[name]
    size = torch.Size(others).numel()
    rows, targets = data(rng, size)
    mtl, flat = made(axis), made()
    found = life(mtl, shaped(rows, others, axis), shaped(targets, others, axis))
    expected = life(flat, rows, targets)
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            other = shaped(other, others, axis)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("axis", [-1, 1])
def test_predictions_have_the_features_shape(axis: int, rng: torch.Generator) -> None:
    rows, targets = data(rng, 24)
    mtl = made(axis)
    mtl.refit([(rows, targets)])
    others = (2, 3, 4)
    x = shaped(rows, others, axis)
    flat, found = mtl.predict(rows), mtl.predict(x)
    for name, outputs in flat.items():
        whole = outputs.reshape(*others, *outputs.shape[1:])
        own = outputs.ndim - 1
        places = tuple(range(1, 1 + own)) if axis == 1 else tuple(range(3, 3 + own))
        assert torch.equal(found[name], whole.movedim(tuple(range(3, 3 + own)), places)), name
    assert found["kind"].shape == ((2, 5, 3, 4) if axis == 1 else (2, 3, 4, 5))
    assert found["parts"].shape == ((2, 2, 3, 3, 4) if axis == 1 else (2, 3, 4, 2, 3))
    assert found["depth"].shape == ((2, 1, 3, 4) if axis == 1 else (2, 3, 4, 1))


@pytest.mark.parametrize("axis", [-1, 1])
def test_so_have_predictive_distributions(axis: int, rng: torch.Generator) -> None:
    rows, targets = data(rng, 24)
    mtl = made(axis)
    mtl.refit([(rows, targets)])
    others = (2, 3, 4)
    flat, found = mtl.predictive(rows), mtl.predictive(shaped(rows, others, axis))
    values = {name: one[0] if isinstance(one, tuple) else one for name, one in targets.items()}
    values["normal"] = values["normal"].nan_to_num()
    for name, value in values.items():
        one, other = found[name], flat[name]
        torch.testing.assert_close(one.mean, shaped(other.mean, others, axis), equal_nan=True)
        torch.testing.assert_close(
            one.variance, shaped(other.variance, others, axis), equal_nan=True
        )
        expected = shaped(other.log_prob(value), others, axis)
        torch.testing.assert_close(one.log_prob(shaped(value, others, axis)), expected)
        torch.manual_seed(1)
        drawn = one.sample((7,))
        torch.manual_seed(1)
        assert torch.equal(drawn[3], shaped(other.sample((7,))[3], others, axis))
        assert drawn.shape == (7, *one.batch_shape)
        torch.testing.assert_close(one.log_prob(drawn)[5], one.log_prob(drawn[5]))
        with pytest.raises(errors.ShapeError, match="values must be so too"):
            one.log_prob(drawn[..., :1, :])
    normal, count = found["normal"], found["count"]
    torch.testing.assert_close(count.variance, count.epistemic_variance + count.aleatoric_variance)
    assert found["kind"].probs.shape == ((2, 1, 5, 3, 4) if axis == 1 else (2, 3, 4, 1, 5))
    torch.testing.assert_close(
        found["kind"].logits.softmax(2 if axis == 1 else -1), found["kind"].probs
    )
    assert torch.equal(normal.cdf(normal.mean), torch.full_like(normal.mean, 0.5))
    torch.testing.assert_close(
        normal.cdf(normal.icdf(0.3 + 0 * normal.mean)), 0.3 + 0 * normal.mean
    )
    assert normal.support.check(normal.mean).all()
    assert found["kind"].entropy().shape == found["kind"].batch_shape


def test_calibrating_is_that_of_the_rows(rng: torch.Generator) -> None:
    rows, targets = data(rng, 24)
    others, axis = (2, 3, 4), 1
    x, y = shaped(rows, others, axis), shaped(targets, others, axis)
    mtl, flat = made(axis), made()
    for engine, own in ((mtl, (x, y)), (flat, (rows, targets))):
        engine.refit([own])
    before = mtl.predictive(x)["depth"].variance
    found, expected = mtl.calibrate([(x, y)]), flat.calibrate([(rows, targets)])
    assert [*found] == ["depth", "normal", "kind", "edges", "parts"]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    variance = mtl.predictive(x)["depth"].variance
    assert not torch.allclose(variance, before)
    torch.testing.assert_close(
        variance, shaped(flat.predictive(rows)["depth"].variance, others, axis)
    )


@pytest.mark.parametrize("validate", ["now", "deferred"])
@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf")])
def test_padding_is_as_if_it_were_not_there(
    validate: Any, padding: float, rng: torch.Generator
) -> None:
    """Three sentences of 5, 2 and 4 tokens; a mask over the tokens serves all heads."""
    rows, targets = data(rng, 11)
    real = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    x = torch.full((3, 5, D), padding, dtype=F64)
    x[real] = rows

    def padded(part: Tensor) -> Tensor:
        whole = torch.full((3, 5, *part.shape[1:]), -100, dtype=part.dtype)
        whole[real] = part
        return whole

    given: dict[str, Any] = {}
    for name, one in targets.items():
        values, mask, weight = (*(one if isinstance(one, tuple) else (one,)), None, None)[:3]
        seen = (
            real if mask is None else padded(mask) & (real if mask.ndim == 1 else real[..., None])
        )
        given[name] = (padded(values), seen)
        if weight is not None:
            given[name] += (padded(weight).abs(),)
    found = life(made(validate=validate), x, given)
    expected = life(made(), rows, targets)
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            assert not one[~real].any()
            one = one[real]
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("number", [-100, 255])
@pytest.mark.parametrize(
    "make",
    [
        lambda **how: heads.Categorical(D, 5, **how),
        lambda **how: heads.Ordinal(D, 5, **how),
        lambda **how: heads.Bernoulli(D, **how),
        lambda **how: heads.Network(nn.Linear(D, 3), heads.Categorical(D, 3, **how)),
    ],
)
def test_a_label_to_ignore_is_a_mask(
    make: Callable[..., heads.Head], number: int, rng: torch.Generator
) -> None:
    head = make(missing=number)
    x = torch.randn(2, 3, 4, D, generator=rng, dtype=F64)
    labels = torch.randint(2, (2, 3, 4), generator=rng)
    seen = torch.rand(2, 3, 4, generator=rng) < 0.6
    given = labels.where(seen, number).to(torch.uint8 if number == 255 else torch.int64)
    found = []
    for targets in (given, (labels, seen)):
        torch.manual_seed(0)
        mtl = ba.BayesAgg({"a": make(missing=number)}, generator=torch.Generator().manual_seed(0))
        found.append(life(mtl.double(), x, {"a": targets}))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not found[0][1][~seen].any()
    with pytest.raises(errors.SettingError, match=r"missing=|0 or 1"):
        ba.BayesAgg({"a": make()}).collect(x.float(), {"a": given})
    assert head.missing == number


def test_what_cannot_stand_for_a_missing_label() -> None:
    with pytest.raises(errors.SettingError, match=r"no NaN.*-100"):
        heads.Categorical(D, 5, missing="nan")
    for wrong in ("none", 1.5, None, True):
        with pytest.raises(errors.SettingError, match="missing must be"):
            heads.Bernoulli(D, missing=wrong)  # type: ignore[arg-type]


def test_padding_is_left_out_before_anything_is_computed(rng: torch.Generator) -> None:
    """Beside an image without any, and one where one head lacks labels."""
    mtl = ba.BayesAgg(
        {"a": heads.Gaussian(D), "b": heads.Gaussian(D, missing="nan")}, keep_gradients=True
    ).double()
    x = [torch.randn(2, 3, D, generator=rng, dtype=F64).requires_grad_() for _ in range(3)]
    y = [torch.randn(2, 3, generator=rng, dtype=F64) for _ in range(4)]
    real = torch.tensor([[True, True, False], [True, False, False]])
    y[3][0] = torch.nan
    batches = [(x[0], {"a": (y[0], real)}), (x[1], {"a": y[1]}), (x[2], {"a": y[2], "b": y[3]})]
    for _ in range(2):
        for one in x:
            one.grad = None
        mtl.backward(batches)
        mtl.update_prior()
        mtl.start_bayes()
    info = mtl.info
    assert info is not None
    assert info.stages is not None
    rows = torch.cat([x[0][real], x[1].reshape(-1, D), x[2].reshape(-1, D)])
    assert torch.equal(info.stages.features, rows)
    assert info.aggregated is not None
    direction = info.aggregated.direction * (info.update_factor / len(rows))
    of = [one.grad for one in x if one.grad is not None]
    assert torch.equal(
        torch.cat([of[0][real], of[1].flatten(0, 1), of[2].flatten(0, 1)]), direction
    )
    assert not of[0][~real].any()
    assert of[0][real].all()


def test_bad_features_where_a_label_is_are_refused(rng: torch.Generator) -> None:
    rows, targets = data(rng, 15)
    rows[7, 2] = torch.nan
    x, y = shaped(rows, (3, 5), -1), shaped(targets, (3, 5), -1)
    with pytest.raises(errors.NonFiniteError, match="feature 2 of example 7 is nan"):
        made().collect(x, y)
    late = made(validate="deferred")
    late.collect(x, y)
    with pytest.raises(errors.NonFiniteError):
        late.raise_deferred()


def test_shapes_that_do_not_fit_are_refused(rng: torch.Generator) -> None:
    rows, targets = data(rng, 24)
    x, y = shaped(rows, (2, 3, 4), 1), shaped(targets, (2, 3, 4), 1)
    with pytest.raises(errors.ShapeError, match=r"'depth'.*3 entries on axis 3.*feature_axis"):
        made().collect(shaped(rows[:, :3], (2, 4, 3), -1), y)
    mtl = made(1)
    for name, wrong in {
        "depth": y["depth"][:, :2],
        "normal": shaped(targets["normal"], (2, 3, 4), -1),
        "kind": torch.nn.functional.one_hot(y["kind"], 5),
        "edges": (y["edges"][0], y["edges"][1][:, :1]),
    }.items():
        with pytest.raises(errors.ShapeError, match=f"'{name}'.*must have the features' shape"):
            mtl.collect(x, {**y, name: wrong})
    for wrong in ((y["depth"],), (y["depth"], None, None, None)):
        with pytest.raises(errors.BayesAggError, match=r"'depth'.*not of length [14];"):
            mtl.collect(x, {**y, "depth": wrong})
    with pytest.raises(errors.ShapeError, match="no axis 3"):
        made(3).predict(x[0])
    for axis in (0, 1.0, True, None):
        with pytest.raises(errors.SettingError, match="feature_axis"):
            made(axis)  # type: ignore[arg-type]


def test_the_graph_is_the_user_s(rng: torch.Generator) -> None:
    """Through a convolution, against the rows that a user would have made."""
    torch.manual_seed(0)
    net = nn.Conv2d(3, D, 3, padding=1).double()
    images = torch.randn(2, 3, 3, 4, generator=rng, dtype=F64)
    _, targets = data(rng, 24)
    found = []
    for by_hand in (False, True):
        mtl = made(-1 if by_hand else 1, aggregation=aggregation.PrecisionWeighted.paper())
        for _ in range(2):
            net.zero_grad()
            h = net(images)
            if by_hand:
                mtl.backward(h.permute(0, 2, 3, 1).reshape(-1, D), targets)
            else:
                mtl.backward(h, shaped(targets, (2, 3, 4), 1))
            mtl.update_prior()
            mtl.start_bayes()
        assert net.weight.grad is not None
        found.append(net.weight.grad.clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)
