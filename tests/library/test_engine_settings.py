"""Engines that cannot be made: names, heads and settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, prune

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors


@pytest.mark.parametrize(
    "name", ["type", "keys", "", "a.b", "training", "forward", "items", "_apply", 3, None, ("a",)]
)
def test_names_that_torch_would_reject(name) -> None:
    with pytest.raises(errors.TaskError, match=r"cannot name a head.*rename"):
        ba.BayesAgg({name: heads.Gaussian(3)})


@pytest.mark.parametrize("given", [{"c": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}])
@pytest.mark.parametrize("setting", ["inference", "prior"])
def test_settings_for_each_head_are_for_no_others(setting, given) -> None:
    value = inference.TaylorGGN() if setting == "inference" else priors.FullData()
    model = {"a": heads.Bernoulli(3), "b": heads.Bernoulli(3)}
    with pytest.raises(errors.TaskError, match=rf"{setting} is given for unknown heads \['c'\]"):
        ba.BayesAgg(model, **{setting: dict.fromkeys(given, value)})


def test_one_head_under_two_names() -> None:
    head = heads.Gaussian(3)
    with pytest.raises(errors.TaskError, match=r"'a'.*'b'"):
        ba.BayesAgg({"a": head, "b": head})
    assert head.name is None


@pytest.mark.parametrize("wrong", [{}, [], None, [heads.Gaussian(3)], heads.Gaussian(3)])
def test_heads_that_are_no_mapping(wrong) -> None:
    with pytest.raises(errors.TaskError, match="name: head"):
        ba.BayesAgg(wrong)


@pytest.mark.parametrize("wrong", [torch.nn.Linear(3, 1), heads.Gaussian, "Gaussian", None])
def test_heads_that_are_no_heads(wrong) -> None:
    with pytest.raises(errors.DtypeError, match="'a'"):
        ba.BayesAgg({"a": wrong})


def test_heads_over_different_features() -> None:
    mtl = ba.BayesAgg({"a": heads.Gaussian(3), "b": heads.Gaussian(4)})
    with pytest.raises(errors.ShapeError, match=r"'b'.*\[examples, 4\].*\{head: features\}"):
        mtl.predict(torch.ones(2, 3))


HEAD = {"a": heads.Gaussian(3)}

SETTINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a scheme's class": ({"inference": inference.Conjugate}, errors.DtypeError, r"Conjugate\(\)"),
    "a scheme's class by name": (
        {"inference": {"a": inference.Conjugate}},
        errors.DtypeError,
        r"'a'.*Conjugate\(\)",
    ),
    "a scheme's name": ({"inference": "conjugate"}, errors.DtypeError, "inference of 'a'"),
    "schemes of other heads": (
        {"inference": {"b": inference.Conjugate()}},
        errors.TaskError,
        r"inference is given for unknown heads \['b'\]",
    ),
    "a policy's class": ({"prior": priors.FullData}, errors.DtypeError, r"FullData\(\)"),
    "a distribution for a policy": (
        {"prior": priors.isotropic(HEAD["a"], 1.0)},
        errors.DtypeError,
        r"prior of 'a'.*FullData\(base=lambda head: \.\.\.\)",
    ),
    "policies of other heads": (
        {"prior": {"a": priors.FullData(), "b": priors.FullData()}},
        errors.TaskError,
        r"prior is given for unknown heads \['b'\]",
    ),
    "an estimator's class": (
        {"estimator": gradients.MonteCarlo},
        errors.DtypeError,
        r"MonteCarlo\(\)",
    ),
    "estimators of other heads": (
        {"estimator": {"b": gradients.Exact()}},
        errors.TaskError,
        r"\['b'\]",
    ),
    "an aggregation's class": (
        {"aggregation": aggregation.Mean},
        errors.DtypeError,
        "aggregation",
    ),
    "an aggregation's name": ({"aggregation": "mean"}, errors.DtypeError, "aggregation"),
    "another reduction": ({"reduction": "median"}, errors.SettingError, "reduction.*median"),
    "another validation": ({"validate": "later"}, errors.SettingError, "validate.*later"),
    "memory in words": ({"working_memory": "1 GB"}, errors.SettingError, "working_memory"),
    "no epochs of warm-up": ({"warmup_epochs": 0}, errors.SettingError, "warmup"),
    "epochs without warm-up": (
        {"warmup_epochs": 2, "warmup": False},
        errors.SettingError,
        "warmup=True",
    ),
}


@pytest.mark.parametrize("said", [{"reduction": "total"}, {"scale": "sum"}])
def test_an_aggregation_says_what_weights_add_up_to_in_one_way(said) -> None:
    mine = type("Mine", (aggregation.Mean,), said)
    with pytest.raises(errors.SettingError, match=r"Mine\..* reduction|Mine\.reduction"):
        ba.BayesAgg(HEAD, aggregation=mine())


@pytest.mark.parametrize("wrong", SETTINGS)
def test_bad_settings(wrong) -> None:
    settings, error, words = SETTINGS[wrong]
    with pytest.raises(error, match=words) as caught:
        ba.BayesAgg(HEAD, **settings)
    assert isinstance(caught.value, errors.BayesAggError)


def test_settings_between_steps_are_checked() -> None:
    mtl = ba.BayesAgg(HEAD)
    kept = mtl.aggregation
    with pytest.raises(errors.DtypeError, match="aggregation"):
        mtl.aggregation = "mean"  # type: ignore[assignment]
    with pytest.raises(errors.TaskError, match=r"unknown \['b'\]"):
        mtl.aggregation = aggregation.PrecisionWeighted({"b": 0.5})
    assert mtl.aggregation is kept
    wrongs = {"feature_axis": 0, "working_memory": "1 GB", "warmup": "no", "warmup_epochs": "2"}
    for name, wrong in wrongs.items():
        before = getattr(mtl, name)
        with pytest.raises(errors.SettingError, match=name):
            setattr(mtl, name, wrong)
        assert getattr(mtl, name) == before
    with pytest.raises(errors.DtypeError, match=r"generator .*manual_seed\(0\), not 0"):
        mtl.generator = 0  # type: ignore[assignment]
    h, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 1)
    mtl.collect(h, {"a": y})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.reduction = "avg"  # type: ignore[assignment]
    with pytest.raises(errors.SettingError, match=r"reduction.*avg"):
        mtl.backward(h, {"a": y})
    assert h.grad is None


@pytest.mark.parametrize("first", [None, 3])
def test_a_generator_that_is_set_later_draws(first: int | None) -> None:
    """As one that the engine was made with, after whatever there was before."""
    h, y = torch.randn(20, 3), torch.randn(20, 1)

    def drawn(given: int | None, later: int | None) -> torch.Tensor:
        def of(seed: int | None) -> torch.Generator | None:
            return None if seed is None else torch.Generator().manual_seed(seed)

        mtl = ba.BayesAgg(
            {"a": heads.Bernoulli(3)},
            aggregation.PrecisionWeighted(),
            inference=inference.Ensemble(4),
            estimator=gradients.MonteCarlo(4),
            generator=of(given),
        )
        if later is not None:
            mtl.generator = of(later)
        mtl.refit([(h, {"a": (y > 0).float()})])
        leaf = h.clone().requires_grad_()
        mtl.backward(leaf, {"a": (y > 0).float()})
        assert leaf.grad is not None
        return torch.cat([leaf.grad.flatten(), mtl.posteriors()["a"].mean.flatten()])

    torch.manual_seed(0)
    wanted = drawn(7, None)
    torch.manual_seed(0)
    found = drawn(first, 7)
    assert torch.equal(found, wanted)
    torch.manual_seed(0)
    assert not torch.equal(found, drawn(8, None))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "added": lambda heads_: heads_.update({"b": heads.Gaussian(3)}),
    "replaced": lambda heads_: heads_.__setitem__("a", heads.Gaussian(3)),
    "replaced as an attribute": lambda heads_: setattr(heads_, "a", heads.Gaussian(3)),
    "removed": lambda heads_: heads_.pop("a"),
    "cleared": lambda heads_: heads_.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_engine_keeps_its_heads(change: str) -> None:
    """Another head there would never be trained, and predictions be those of the old one."""
    head = heads.Gaussian(3)
    mtl = ba.BayesAgg({"a": head})
    with pytest.raises(errors.StateError, match=r"head '[ab]'.*keeps the heads.*new engine"):
        CHANGES[change](mtl.heads)
    assert list(mtl.heads.items()) == [("a", head)]
    mtl.heads.add_module("a", head)  # as torch.nn.SyncBatchNorm does to all modules


@pytest.mark.parametrize("kept", ["heads", "schemes", "estimators"])
def test_an_engine_keeps_what_belongs_to_heads(kept: str) -> None:
    mtl, other = ba.BayesAgg(HEAD), ba.BayesAgg({"b": heads.Gaussian(3)})
    before = getattr(mtl, kept)
    with pytest.raises(errors.StateError, match=rf"the {kept} of \['a'\] .* replaced by a .*mtl"):
        setattr(mtl, kept, getattr(other, kept))
    assert getattr(mtl, kept) is before
    setattr(mtl, kept, before)


def test_an_estimator_set_later_is_checked_as_one_given_at_first() -> None:
    mtl = ba.BayesAgg(HEAD)
    before = dict(mtl.estimators)
    for name, wrong, error in (
        ("typo", gradients.Exact(), errors.TaskError),
        ("typo", None, errors.TaskError),
        ("a", "exact", errors.DtypeError),
        ("a", gradients.Exact, errors.DtypeError),
    ):
        with pytest.raises(error, match=f"estimator.*{name}"):
            mtl.estimators[name] = wrong  # type: ignore[assignment]
    with pytest.raises(errors.StateError, match="'a' to None"):
        del mtl.estimators["a"]
    assert mtl.estimators == before
    mtl.estimators["a"] = mine = gradients.MonteCarlo(4)
    assert mtl._slots["a"].estimators["a"] is mine
    twin = copy.deepcopy(mtl)
    twin.estimators["a"] = None
    assert twin._slots["a"].estimators["a"] is None
    assert mtl.estimators["a"] is mine


def test_what_is_no_observer() -> None:
    mtl = ba.BayesAgg(HEAD)
    for wrong in (object(), print, True):
        with pytest.raises(errors.DtypeError, match=r"observer.*Recorder\(mtl\).*no wants\(\)"):
            mtl.observer = wrong  # type: ignore[assignment]
    mtl.observer = None


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("call", ["backward", "collect", "predict", "refit", "update_prior"])
@pytest.mark.parametrize("kind", ["Gaussian", "Bernoulli"])
def test_a_weight_of_another_shape(kind: str, call: str, bayes: bool) -> None:
    mtl = ba.BayesAgg({"a": getattr(heads, kind)(3, tasks=2), "b": heads.Bernoulli(3)})
    h, y = torch.randn(4, 3, requires_grad=True), dict.fromkeys("ab", torch.ones(4, 1))
    y["a"] = torch.eye(2).repeat(2, 1)
    if bayes:
        mtl.refit([(h, y)])
    mtl.collect(h, y)
    calls: dict[str, Callable[[], Any]] = {
        "backward": lambda: mtl.backward(h, y),
        "collect": lambda: mtl.collect(h, y),
        "predict": lambda: mtl.predict(h),
        "refit": lambda: mtl.refit([(h, y)]),
        "update_prior": lambda: mtl.update_prior(),
    }
    head, own = mtl.heads["a"], mtl.heads["a"].weight
    state = {name: x.clone() for name, x in mtl.state_dict().items() if "heads.a" not in name}
    for wrong in (torch.nn.Parameter(torch.zeros(2, 7)), torch.nn.Parameter(torch.ones(5)), None):
        head.weight = wrong
        with pytest.raises(errors.ShapeError, match=r"weight of head 'a' has .*new engine"):
            calls[call]()
        assert h.grad is None
        assert all(weight.grad is None for weight in mtl.parameters())
    head.weight = own
    assert all(torch.equal(x, mtl.state_dict()[name]) for name, x in state.items())
    calls[call]()


def test_heads_that_write_their_means_share_no_weight() -> None:
    for other in (heads.Gaussian(3), heads.Bernoulli(3, bias=False)):
        head = heads.Gaussian(3)
        other.weight = head.weight
        with pytest.raises(errors.TaskError, match="'a' and 'b' share one weight"):
            ba.BayesAgg({"a": head, "b": other})
    learned = heads.Bernoulli(3), heads.Bernoulli(3)
    learned[0].weight = learned[1].weight
    ba.BayesAgg(dict(zip("ab", learned, strict=True)))


@pytest.mark.parametrize("early", [True, False])
def test_weights_that_something_computes_hold_no_mean(early: bool) -> None:
    """What `copy_` writes there is lost, and predictions would be those of the first weights."""
    mtl, head = ba.BayesAgg(HEAD), heads.Gaussian(3)
    if not early:
        mtl = ba.BayesAgg({"a": head})
        mtl.collect(torch.randn(4, 3), {"a": torch.randn(4, 1)})
        mtl.update_prior()
    parametrizations.weight_norm(head)
    with pytest.raises(errors.SettingError, match=r"head 'a'.*computes it anew.*TaylorGGN"):
        ba.BayesAgg({"a": head}) if early else mtl.start_bayes()
    assert mtl.warmup
    ba.BayesAgg({"a": head}, inference=inference.TaylorGGN())


def test_weights_that_hooks_leave_out_of_date() -> None:
    """A step would take the gradient at the weights of the step before."""
    head = heads.Bernoulli(3)
    mtl, x = ba.BayesAgg({"a": head}), torch.randn(4, 3)
    y = {"a": (x[:, :1] > 0).float()}
    mtl.collect(x, y)
    mtl.update_prior()
    prune.random_unstructured(head, "weight", 0.5)
    for call in (lambda: mtl.backward(x.requires_grad_(), y), lambda: mtl.refit([(x, y)])):
        with pytest.raises(errors.SettingError, match=r"head 'a' is computed at its next pass"):
            call()
    pruned = mtl.predict(x)["a"]
    prune.remove(head, "weight")
    mtl.refit([(x.detach(), y)])
    assert torch.equal(mtl.predict(x)["a"], pruned)
    mtl.backward(x, y)
