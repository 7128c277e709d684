"""Forms in which targets come: tuples, lists of a data loader, a user's own `Targets`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, priors
from bayesagg_pyro.predictive import log_predictive_density
from bayesagg_pyro.targets import Targets

B, D = 6, 3
F64 = torch.float64


class Examples(Dataset):
    """Rows of tensors; tuples, lists, named tuples and dictionaries of them stay such."""

    def __init__(self, *columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return B

    def __getitem__(self, index: int) -> Any:
        return tuple(_row(column, index) for column in self.columns)


def _row(column: Any, index: int) -> Any:
    if isinstance(column, Tensor):
        return column[index]
    if isinstance(column, dict):
        return {name: _row(part, index) for name, part in column.items()}
    rows = [_row(part, index) for part in column]
    return type(column)(*rows) if hasattr(column, "_fields") else type(column)(rows)


def collated(features: Tensor, targets: Any) -> Any:
    return next(iter(DataLoader(Examples(features, targets), batch_size=B)))


def parts(rng: torch.Generator, tasks: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, values, mask and weight."""
    h = torch.randn(B, D, generator=rng, dtype=F64)
    y = torch.randn(B, tasks, generator=rng, dtype=F64)
    mask = torch.rand(B, tasks, generator=rng) < 0.6
    mask[0] = True
    return h, y, mask, torch.rand(B, generator=rng, dtype=F64) + 0.5


@pytest.mark.parametrize(
    ("form", "weighted"),
    [(tuple, False), (list, False), (tuple, True), (list, True), (Targets, True)],
)
@pytest.mark.parametrize("bayes", [False, True])
def test_what_the_default_collate_function_delivers(form, weighted, bayes, rng) -> None:
    h, y, mask, weight = parts(rng)
    whole = (y, mask, weight) if weighted else (y, mask)
    given = form(*whole) if form is Targets else form(whole)
    x, targets = collated(h, {"a": given})
    results = []
    for taken in (targets, {"a": whole}):
        torch.manual_seed(0)
        mtl = ba.BayesAgg({"a": heads.Gaussian(D, 2)}).double()
        if bayes:
            mtl.collect(x, taken)
            mtl.update_prior()
            mtl.start_bayes()
        leaf = x.clone().requires_grad_()
        results.append((mtl.backward(leaf, taken)["a"], leaf.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_lists_go_everywhere_that_tuples_go(rng) -> None:
    h, y, mask, weight = parts(rng)
    head = heads.Gaussian(D, 2).double()
    prior = priors.isotropic(head, 1.0)
    for pair in (([y, mask], (y, mask)), ([y, mask, weight], (y, mask, weight))):
        p, q = (inference.Conjugate().infer(head, h, given, prior) for given in pair)
        assert torch.equal(p.mean, q.mean)
        a, b = (gradients.distribution(head, p, h, given) for given in pair)
        assert torch.equal(a.mean, b.mean)
        a, b = (log_predictive_density(head, p, h, given) for given in pair)
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("targets", "error", "words"),
    [
        (lambda y, m, w: [y], errors.ShapeError, "length 1"),
        (lambda y, m, w: [y, m, w, w], errors.ShapeError, "length 4; stack"),
        (lambda y, m, w: list(y), errors.ShapeError, "length 6; stack"),
        (lambda y, m, w: list(y[:2]), errors.ShapeError, r"\[6, 2\]"),
        (lambda y, m, w: [y[:, 0], y[:, 1]], errors.ShapeError, r"\[6, 2\].*stack\(tensors, -1\)"),
        (lambda y, m, w: [y, w], errors.DtypeError, "weight of examples comes third"),
        (lambda y, m, w: [y, y], errors.DtypeError, "weight of examples comes third"),
        (lambda y, m, w: [y, m, m], errors.DtypeError, "weight"),
        (lambda y, m, w: y.tolist(), errors.DtypeError, "must be a tensor, not list"),
        (lambda y, m, w: [y.tolist(), m], errors.DtypeError, "must be a tensor, not list"),
        (lambda y, m, w: [1.0, 2.0], errors.DtypeError, "must be a tensor, not list"),
        (lambda y, m, w: {"values": y}, errors.DtypeError, "must be a tensor, not dict"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused(targets, error, words, rng) -> None:
    h, y, mask, weight = parts(rng)
    mtl = ba.BayesAgg({"a": heads.Gaussian(D, 2)}).double()
    h.requires_grad_()
    with pytest.raises(error, match=words) as raised:
        mtl.backward(h, {"a": targets(y, mask, weight)})
    assert "'a'" in str(raised.value)
    assert h.grad is None


NAN = float("nan")
WRONG = {
    "values are no tensor": (lambda y, m, w: Targets([1.0]), errors.DtypeError),
    "shape": (lambda y, m, w: Targets(y[:, :1]), errors.ShapeError),
    "batch": (lambda y, m, w: Targets(y[:-1]), errors.ShapeError),
    "type": (lambda y, m, w: Targets(y.long()), errors.DtypeError),
    "NaN": (lambda y, m, w: Targets(y.where(m, torch.nan)), errors.NonFiniteError),
    "infinite": (lambda y, m, w: Targets(y * torch.inf, m), errors.NonFiniteError),
    "mask of numbers": (lambda y, m, w: Targets(y, m.double()), errors.DtypeError),
    "mask of another shape": (lambda y, m, w: Targets(y, m[:, :1]), errors.ShapeError),
    "negative weight": (lambda y, m, w: Targets(y, None, -w), errors.SettingError),
    "weight of NaN": (lambda y, m, w: Targets(y, m, w * torch.nan), errors.NonFiniteError),
    "weight of another shape": (lambda y, m, w: Targets(y, m, w[:-1]), errors.ShapeError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_user_s_own_targets_are_checked(name, rng) -> None:
    h, y, mask, weight = parts(rng)
    make, error = WRONG[name]
    bad = make(y, mask, weight)
    head = heads.Gaussian(D, 2).double()
    mtl = ba.BayesAgg({"a": head}).double()
    prior = priors.isotropic(head, 1.0)
    calls = (
        lambda: mtl.backward(h.clone().requires_grad_(), {"a": bad}),
        lambda: mtl.collect(h, {"a": bad}),
        lambda: inference.Conjugate().infer(head, h, bad, prior),
        lambda: inference.Laplace().infer(head, h, bad, prior),
        lambda: gradients.distribution(head, prior, h, bad),
        lambda: log_predictive_density(head, prior, h, bad),
        lambda: head.parse_targets(bad, B),
    )
    for call in calls:
        with pytest.raises(error, match="'a'"):
            call()


def test_a_user_s_own_targets_are_filled_like_others(rng) -> None:
    """Behind a mask anything may stand, NaN too, and one weight may be for a whole example."""
    _, y, mask, weight = parts(rng)
    head = heads.Gaussian(D, 2).double()
    parsed = head.parse_targets(Targets(y.where(mask, torch.nan), mask, weight), B)
    assert parsed.values.isfinite().all()
    assert parsed.weight.shape == (B, 2)
    flat = heads.Gaussian(D).parse_targets(Targets(y[:, 0]), B)
    assert flat.values.shape == (B, 1)


def test_what_is_parsed_is_not_looked_at_again(rng) -> None:
    """Parts of it neither; but it must be for as many examples and tasks."""
    _, y, mask, weight = parts(rng)
    head = heads.Gaussian(D, 2).double()
    parsed = head.parse_targets((y, mask, weight), B)
    assert head.parse_targets(parsed, B) is parsed
    some = parsed.examples(slice(2))
    assert head.parse_targets(some, 2) is some
    one = parsed.part(slice(1))
    assert heads.Gaussian(D).parse_targets(one, B) is one
    for bad in (some, one):
        with pytest.raises(errors.ShapeError, match=r"\[6, 2\]"):
            head.parse_targets(bad, B)


def test_the_mean_of_nothing_is_said_to_be_none(rng) -> None:
    _, y, _, _ = parts(rng)
    y.requires_grad_()
    mask = torch.tensor([True, False]).expand(B, 2)
    found = Targets(y, mask).mean(y.square())
    assert found.isnan().tolist() == [False, True]
    assert Targets(y, mask).mean(y.square(), none=0.0).tolist()[1] == 0
    (slope,) = torch.autograd.grad(found.sum(), y)
    assert torch.equal(slope, torch.where(mask, 2 * y / B, 0.0))


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def test_counts_kept_of_narrow_and_wide_integers_do_not_wrap() -> None:
    """What keeps examples makes room for the first batch's dtype; 300 is 44 in eight bits."""
    x = torch.ones(1, D, dtype=F64)
    means = []
    for first in (torch.uint8, torch.int64):
        torch.manual_seed(0)
        mtl = ba.BayesAgg({"a": heads.Poisson(D)}, inference=inference.Laplace()).double()
        mtl.collect(x, {"a": torch.tensor([[1]], dtype=first)})
        mtl.collect(x, {"a": torch.tensor([[300]])})
        mtl.update_prior()
        means.append(mtl.posteriors()["a"].mean)
    assert torch.equal(*means)


@pytest.mark.parametrize("name", ["Gaussian", "Bernoulli", "Poisson", "Categorical"])
def test_every_dtype_trains_to_the_same_or_is_refused(name, rng) -> None:
    """Warm-up, prior and Bayesian step, for targets that the dtype holds exactly, flat or not."""
    h, _, _, _ = parts(rng)
    y = torch.randint(0, 2, (B, 1), generator=rng)

    def refused(dtype: torch.dtype) -> bool:
        return {
            "Gaussian": not dtype.is_floating_point,
            "Bernoulli": False,
            "Poisson": dtype == torch.bool,
            "Categorical": dtype.is_floating_point or dtype == torch.bool,
        }[name]

    def results(targets: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        head = heads.Categorical(D, 2) if name == "Categorical" else getattr(heads, name)(D)
        mtl = ba.BayesAgg({"a": head}).double()
        leaf = h.clone().requires_grad_()
        losses = [mtl.backward(leaf, {"a": targets})["a"]]
        mtl.update_prior()
        mtl.start_bayes()
        losses.append(mtl.backward(leaf, {"a": targets})["a"])
        density = log_predictive_density(head, mtl.posteriors()["a"], h, targets)
        return [*losses, leaf.grad, density, mtl.predictive(h)["a"].log_prob(targets)]

    plain = results(y if name == "Categorical" else y.double())
    taken = [dtype for dtype in DTYPES if not refused(dtype)]
    for dtype in DTYPES:
        if dtype in taken:
            # Flat or not is the same to all.
            given = y.to(dtype)[:, 0] if taken.index(dtype) % 2 else y.to(dtype)
            for found, expected in zip(results(given), plain, strict=True):
                torch.testing.assert_close(
                    found, expected, rtol=1e-12, atol=1e-12, msg=lambda m, d=dtype: f"{d}: {m}"
                )
            continue
        with pytest.raises(errors.DtypeError, match="'a'"):
            results(y.to(dtype))


class Waiting(heads.OnePredictor):
    def likelihood(self, outputs: Tensor) -> Any:
        return torch.distributions.LogNormal(outputs, 0.5, validate_args=False)


class Tail(heads.OnePredictor):
    """Its support is bounded by the outputs, so that none is known beforehand."""

    def likelihood(self, outputs: Tensor) -> Any:
        return torch.distributions.Pareto(outputs.exp(), 1.0, validate_args=False)


class Shares(heads.Head):
    def likelihood(self, outputs: Tensor) -> Any:
        a, b = outputs.exp().unbind(-1)
        return torch.distributions.Beta(a, b, validate_args=False)


@pytest.mark.parametrize(
    ("head", "bad", "kind"),
    [(Waiting(D), -1.0, "LogNormal"), (Shares(D, outputs_per_task=2), 1.5, "Beta")],
)
def test_a_likelihood_says_by_its_support_what_targets_are(
    head: heads.Head, bad: float, kind: str
) -> None:
    y = torch.full((B, 1), 0.5)
    y[2] = bad
    with pytest.raises(errors.SettingError, match=f"task 0, example 2, is {bad}; {kind} takes"):
        head.parse_targets(y, B)
    assert not head.valid(head.parse_targets(y, B, validate=False))
    head.parse_targets((y, y == 0.5), B)  # what is not observed is not looked at
    head.parse_targets(y.clamp(0.1, 0.9), B)


def test_a_support_that_outputs_decide_is_not_checked() -> None:
    assert Tail(D).supports(torch.tensor([[0.5], [torch.nan]])).tolist() == [[True], [False]]


def test_one_hot_classes_are_told_what_to_do() -> None:
    with pytest.raises(errors.ShapeError, match=r"take \.argmax\(-1\)"):
        heads.Categorical(D, classes=4).parse_targets(torch.eye(B)[:, :4], B)


@pytest.mark.parametrize("bayes", [False, True])
def test_labels_made_in_inference_mode_teach_like_others(bayes, rng) -> None:
    """Those of a teacher, say; autograd cannot keep such tensors."""
    h, y, mask, weight = parts(rng)
    with torch.inference_mode():
        taught = {"y": (y.clone(), mask.clone(), weight.clone()), "c": mask[:, 0].long()}
    plain = {"y": (y, mask, weight), "c": mask[:, 0].long()}
    torch.manual_seed(0)
    own = {"y": heads.Gaussian(D, tasks=2), "c": heads.Categorical(D, classes=3)}
    mtl = ba.BayesAgg(own).double()
    if bayes:
        mtl.collect(h, plain)
        mtl.update_prior()
        mtl.start_bayes()
    updates = []
    for targets in (taught, plain):
        leaf = h.clone().requires_grad_()
        mtl.backward(leaf, targets, collect=False)
        updates.append(leaf.grad)
    assert torch.equal(*updates)
