"""Bad input: a typed error with the task's name and the remedy, and nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engines import Toy
from torch import Tensor

from bayesagg_pyro import aggregation, errors

NAN, INF = float("nan"), float("inf")


def at(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed[2, 1] = value
    return changed


def energy(change: Callable[[Tensor], Any]) -> Callable[[Tensor, dict], tuple]:
    return lambda h, y: (h, {**y, "energy": change(y["energy"])})


def features(change: Callable[[Tensor], Any]) -> Callable[[Tensor, dict], tuple]:
    return lambda h, y: (change(h), y)


#: name: (what the user does wrong, the error, words that it must hold)
BATCHES: dict[str, tuple[Callable[..., tuple], type[Exception], str]] = {
    "no targets of any head": (
        lambda h, y: (h, {}),
        errors.TaskError,
        "leave the batch out",
    ),
    "targets without a head": (
        lambda h, y: (h, {**y, "colour": y["other"]}),
        errors.TaskError,
        r"unknown \['colour'\]",
    ),
    "no targets": (lambda h, y: (h, {}), errors.TaskError, "energy.*other"),
    "targets not by name": (lambda h, y: (h, y["energy"]), errors.DtypeError, "'energy': ..."),
    "targets in a list": (
        lambda h, y: (h, list(y.values())),
        errors.DtypeError,
        "'energy': ...",
    ),
    "lists for tensors": (energy(Tensor.tolist), errors.DtypeError, "energy.*list"),
    "numpy for tensors": (energy(Tensor.numpy), errors.DtypeError, "energy.*ndarray"),
    "None for tensors": (energy(lambda y: None), errors.DtypeError, "energy.*NoneType"),
    "integer targets": (energy(Tensor.long), errors.DtypeError, r"energy.*int64.*float\(\)"),
    "boolean targets": (energy(lambda y: y > 0), errors.DtypeError, r"energy.*bool.*float\(\)"),
    "complex targets": (energy(lambda y: y + 0j), errors.DtypeError, "energy.*complex"),
    "sparse targets": (energy(Tensor.to_sparse), errors.DtypeError, r"energy.*to_dense"),
    "targets of 8 bits": (
        energy(lambda y: y.to(torch.float8_e4m3fn)),
        errors.DtypeError,
        r"energy.*16 bits.*float8",
    ),
    "sparse features": (features(Tensor.to_sparse), errors.DtypeError, r"features.*to_dense"),
    "nested features": (
        features(lambda h: torch.nested.as_nested_tensor([h[:3], h[3:]], layout=torch.jagged)),
        errors.DtypeError,
        r"features.*nested.*values\(\)",
    ),
    "features of 8 bits": (
        features(lambda h: h.to(torch.float8_e4m3fn)),
        errors.DtypeError,
        r"features.*16 bits.*float8",
    ),
    "targets of one dimension": (
        energy(lambda y: y[:, 0]),
        errors.ShapeError,
        r"energy.*\[16, 2\]",
    ),
    "targets of three dimensions": (
        energy(lambda y: y[..., None]),
        errors.ShapeError,
        r"energy.*\[16, 2, 1\]",
    ),
    "too few targets": (energy(lambda y: y[:-1]), errors.ShapeError, r"energy.*\[15, 2\]"),
    "too many tasks": (energy(lambda y: y.repeat(1, 2)), errors.ShapeError, r"energy.*\[16, 4\]"),
    "targets the wrong way round": (energy(lambda y: y.T), errors.ShapeError, r"energy.*\[2, 16\]"),
    "NaN targets": (
        energy(lambda y: at(y, NAN)),
        errors.NonFiniteError,
        "energy.*task 1, example 2.*missing='nan'",
    ),
    "infinite targets": (energy(lambda y: at(y, INF)), errors.NonFiniteError, "energy.*inf"),
    "infinite where masked in": (
        energy(lambda y: (at(y, -INF), torch.ones_like(y, dtype=torch.bool))),
        errors.NonFiniteError,
        "energy.*-inf",
    ),
    "a float mask": (energy(lambda y: (y, torch.ones_like(y))), errors.DtypeError, "energy.*mask"),
    "a mask of another shape": (
        energy(lambda y: (y, torch.ones(16, 1, dtype=torch.bool))),
        errors.ShapeError,
        "energy.*mask",
    ),
    "a mask that is a list": (
        energy(lambda y: (y, (y > 0).tolist())),
        errors.DtypeError,
        "energy.*mask",
    ),
    "a tuple too long": (
        energy(lambda y: (y, y > 0, None, None)),
        errors.ShapeError,
        "energy.*values, mask",
    ),
    "an empty tuple": (energy(lambda y: ()), errors.ShapeError, "energy.*values, mask"),
    "a batch without examples": (
        lambda h, y: (h[:0], {name: t[:0] for name, t in y.items()}),
        errors.ShapeError,
        "energy.*empty",
    ),
    "features of three dimensions": (
        features(lambda h: h[:, None]),
        errors.ShapeError,
        r"energy.*features' shape.*\[16, 1, 2\]; not \[16, 2\]",
    ),
    "features of one dimension": (
        features(lambda h: h[0]),
        errors.ShapeError,
        r"energy.*\[examples, 5\]",
    ),
    "too few features": (features(lambda h: h[:, :4]), errors.ShapeError, r"energy.*\[16, 4\]"),
    "features that need no gradient": (
        features(Tensor.detach),
        errors.StateError,
        "need no gradient.*not detached",
    ),
    "features that are a list": (
        features(lambda h: h.tolist()),
        errors.DtypeError,
        "features.*tensor.*list",
    ),
    "integer features": (
        features(lambda h: h.detach().long()),
        errors.BayesAggError,
        "features",
    ),
    "complex features": (features(lambda h: h + 0j), errors.DtypeError, "energy.*floating"),
    "NaN features": (
        features(lambda h: at(h, NAN)),
        errors.NonFiniteError,
        "feature 1 of example 2 is nan",
    ),
    "infinite features": (
        features(lambda h: at(h, INF)),
        errors.NonFiniteError,
        "feature 1 of example 2 is inf",
    ),
    "features elsewhere": (
        features(lambda h: h.to("meta")),
        errors.DeviceError,
        r"energy.*meta.*to\('cpu'\)",
    ),
    "targets elsewhere": (
        energy(lambda y: y.to("meta")),
        errors.DeviceError,
        r"energy.*meta.*to\('cpu'\)",
    ),
}


def snapshot(toy: Toy) -> dict[str, Any]:
    toy.mtl.info = None
    return copy.deepcopy(
        {
            "grads": [p.grad for p in toy.backbone.parameters()],
            "heads": [p.grad for p in toy.mtl.parameters()],
            "state": toy.mtl.state_dict(),
            "rng": torch.get_rng_state(),
        }
    )


def assert_same(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, Tensor):
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    else:
        assert one == two


@pytest.mark.parametrize("bayes", [False, True], ids=["warmup", "bayes"])
@pytest.mark.parametrize("wrong", BATCHES)
def test_bad_batches_change_nothing(rng, wrong, bayes) -> None:
    change, error, words = BATCHES[wrong]
    toy = Toy(rng)
    if bayes:
        toy.bayes()
    toy.step(slice(16, 24))  # there are gradients and sums to spoil
    before = snapshot(toy)
    x, y = toy.batch(slice(0, 16))
    h, targets = change(toy.backbone(x), y)
    with pytest.raises(error, match=words) as caught:
        toy.mtl.backward(h, targets)
    assert isinstance(caught.value, errors.BayesAggError)
    assert_same(snapshot(toy), before)
    if "no gradient" not in wrong and "integer features" not in wrong:
        with pytest.raises(error, match=words):
            toy.mtl.collect(h, targets)
        assert_same(snapshot(toy), before)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda h: h[..., None],
        lambda h: h[:, :4],
        lambda h: h[0],
        lambda h: h.tolist(),
        lambda h: h.long(),
        lambda h: h.to("meta"),
    ],
    ids=["3-d", "narrow", "1-d", "list", "integer", "elsewhere"],
)
def test_predictions_refuse_what_are_no_features(rng, wrong) -> None:
    toy = Toy(rng).bayes()
    h = wrong(toy.backbone(toy.x).detach())
    with pytest.raises(errors.BayesAggError, match="features"):
        toy.mtl.predict(h)
    with pytest.raises(errors.BayesAggError, match="features"):
        toy.mtl.predictive(h)


@pytest.mark.parametrize("value", [NAN, INF])
def test_predictive_refuses_values_that_predict_passes_on(rng, value) -> None:
    toy = Toy(rng).bayes()
    h = at(toy.backbone(toy.x).detach(), value)
    with pytest.raises(errors.NonFiniteError, match="feature 1 of example 2"):
        toy.mtl.predictive(h)
    assert not toy.mtl.predict(h)["energy"][2].isfinite().all()


@pytest.mark.parametrize("power", [{"energy": 0.5}, {"energy": 0.5, "othr": 0.5}, [0.5, 0.5]])
def test_powers_that_do_not_fit_change_nothing(rng, power) -> None:
    toy = Toy(rng)
    toy.epoch()
    toy.mtl.start_bayes()
    wrong = aggregation.PrecisionWeighted.paper(power)
    before = snapshot(toy)
    with pytest.raises(errors.TaskError):
        toy.mtl.aggregation = wrong
    toy.mtl.aggregation = own = aggregation.PrecisionWeighted.paper(0.5)
    own.power = wrong.power
    with pytest.raises(errors.TaskError):
        toy.step(slice(0, 16))
    assert_same(snapshot(toy), before)
