"""validate="deferred": bad values make a zero update now and an error at the next stop."""

from __future__ import annotations

import pytest
import torch
from engines import Toy
from oracles import close

import bayesagg_pyro as ba
from bayesagg_pyro import errors, heads, inference, priors

BAD = [float("nan"), float("inf"), -float("inf")]


def spoil(y: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    spoiled = {name: t.clone() for name, t in y.items()}
    spoiled["other"][3, 1] = value
    return spoiled


def deferred(rng, bayes: bool) -> Toy:
    toy = Toy(rng, validate="deferred")
    return toy.bayes() if bayes else toy


@pytest.mark.parametrize("bayes", [False, True])
def test_good_batches_are_treated_as_ever(rng, bayes) -> None:
    outcomes = []
    for mode in ("now", "deferred"):
        torch.manual_seed(0)
        toy = Toy(torch.Generator().manual_seed(1), validate=mode)
        if bayes:
            toy.bayes()
        losses = toy.step(slice(0, 16))
        heads = [head.weight.grad for head in toy.heads.values() if head.weight.grad is not None]
        toy.mtl.update_prior()
        means = [prior.mean for prior in toy.mtl.priors().values()]
        outcomes.append([*toy.grads(), *losses.values(), *means, *heads])
    for now, later in zip(*outcomes, strict=True):
        assert torch.equal(now, later)


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("value", BAD)
def test_bad_targets_give_a_zero_update_and_a_later_error(rng, bayes, value) -> None:
    toy = deferred(rng, bayes)
    x, y = toy.batch(slice(0, 16))
    losses = toy.mtl.backward(toy.backbone(x), spoil(y, value))
    for grad in toy.grads():
        assert (grad == 0).all()
    for head in toy.heads.values():
        assert head.weight.grad is None or (head.weight.grad == 0).all()
    assert all(loss.isnan().all() for loss in losses.values())  # nothing that could be believed
    with pytest.raises(errors.NonFiniteError, match="validate='now'"):
        toy.mtl.raise_deferred()
    toy.mtl.raise_deferred()  # told once


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("value", BAD)
def test_bad_features_give_a_zero_update(rng, bayes, value) -> None:
    toy = deferred(rng, bayes)
    x, y = toy.batch(slice(0, 16))
    h = toy.backbone(x)
    spoiled = h + torch.where(torch.arange(16)[:, None] == 3, value, 0.0)
    toy.mtl.backward(spoiled, y)
    for grad in toy.grads():
        assert (grad == 0).all()
    with pytest.raises(errors.NonFiniteError):
        toy.mtl.update_prior()


@pytest.mark.parametrize("bayes", [False, True])
def test_good_gradients_already_there_survive(rng, bayes) -> None:
    toy = deferred(rng, bayes)
    toy.step(slice(16, 24))
    before = toy.grads()
    x, y = toy.batch(slice(0, 16))
    toy.mtl.backward(toy.backbone(x), spoil(y, float("nan")))
    for old, new in zip(before, toy.grads(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("value", BAD)
def test_the_sums_stay_clean(rng, bayes, value) -> None:
    """After the error the epoch can go on: the prior is that of the good batches."""
    toy, reference = deferred(rng, bayes), None
    x, y = toy.batch(slice(0, 16))
    toy.mtl.backward(toy.backbone(x), spoil(y, value))
    toy.step(slice(16, 24))
    with pytest.raises(errors.NonFiniteError):
        toy.mtl.update_prior()
    toy.mtl.update_prior()
    torch.manual_seed(0)
    reference = Toy(torch.Generator().manual_seed(1))
    reference.backbone, reference.x, reference.y = toy.backbone, toy.x, toy.y
    reference.step(slice(16, 24))
    reference.mtl.update_prior()
    for name, prior in toy.mtl.priors().items():
        close(prior.mean, reference.mtl.priors()[name].mean)
        close(prior.precision_matrix, reference.mtl.priors()[name].precision_matrix)


def test_saving_never_fails_and_the_next_stop_tells(rng) -> None:
    toy = deferred(rng, True)
    before = toy.mtl.state_dict()
    x, y = toy.batch(slice(0, 16))
    toy.mtl.backward(toy.backbone(x), spoil(y, float("nan")))
    after = toy.mtl.state_dict()
    lasting = [n for n in before if n.startswith(("heads.", "state.priors.")) and "rows" not in n]
    assert all(torch.equal(before[name], after[name]) for name in lasting)
    with pytest.raises(errors.NonFiniteError):
        toy.mtl.update_prior()


def test_shapes_and_names_are_never_deferred(rng) -> None:
    toy = deferred(rng, True)
    x, y = toy.batch(slice(0, 16))
    with pytest.raises(errors.ShapeError, match="energy"):
        toy.mtl.backward(toy.backbone(x), {**y, "energy": y["energy"][:, :1]})
    with pytest.raises(errors.TaskError, match="other"):
        toy.mtl.backward(toy.backbone(x), {"energy": y["energy"], "others": y["other"]})
    assert toy.grads() == []


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("mode", ["now", "deferred"])
def test_an_update_that_overflows_is_found(rng, bayes, mode) -> None:
    """Finite input, but losses or gradients beyond float32: the backbone must not see infinity."""
    toy = Toy(rng, dtype=torch.float32, validate=mode)
    if bayes:
        toy.bayes()
    x, y = toy.batch(slice(0, 16))
    y = {name: t.clamp(-1, 1) * 1e38 for name, t in y.items()}
    if mode == "now":
        with pytest.raises(errors.NonFiniteError, match=r"of head 'energy' overflows.*standardise"):
            toy.mtl.backward(toy.backbone(x), y)
        assert toy.grads() == []
        with pytest.raises(errors.StateError):  # and nothing was collected
            toy.mtl.update_prior()
    else:
        toy.mtl.backward(toy.backbone(x), y)
        assert all((grad == 0).all() for grad in toy.grads())
        with pytest.raises(errors.NonFiniteError):
            toy.mtl.raise_deferred()


@pytest.mark.parametrize("refresh", [1, 2])
def test_looking_at_a_running_prior_changes_nothing_of_training(refresh) -> None:
    found = []
    for looks in (False, True):
        x, y = (torch.randn(9, k, generator=torch.Generator().manual_seed(k)) for k in (3, 2))
        mtl = ba.BayesAgg(
            {"a": heads.Gaussian(3, 2)},
            prior=priors.Running(30, refresh=refresh),
            validate="deferred",
        )
        mtl.collect(x, {"a": y})
        before = mtl.state_dict()
        if looks:
            mtl.predictive(x)
            mtl.priors()
            assert mtl.state_dict().keys() == before.keys()
            mtl.double()
            assert mtl.state_dict().keys() == before.keys()
        mtl.collect(2 * x, {"a": y})
        mtl.start_bayes()
        leaf = x.clone().requires_grad_()
        mtl.backward(leaf, {"a": y})
        found.append(leaf.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("bayes", [False, True])
def test_features_that_are_kept_in_a_narrow_dtype_are_flagged(bayes) -> None:
    policy = priors.FullData(storage=inference.Storage(dtype=torch.float16))
    mtl = ba.BayesAgg({"a": heads.Bernoulli(2)}, prior=policy, validate="deferred")
    x, y = torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), {"a": torch.tensor([[0.0], [1.0]])}
    mtl.collect(x, y)
    if bayes:
        mtl.update_prior()
        mtl.start_bayes()
        mtl.collect(x, y)
    leaf = (1e5 * x).requires_grad_()
    mtl.backward(leaf, y)
    assert (leaf.grad == 0).all()
    with pytest.raises(errors.NonFiniteError):
        mtl.update_prior()
    assert all(value.isfinite().all() for value in mtl.state_dict().values())
    mtl.update_prior()
