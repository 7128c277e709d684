"""Bad settings of heads, schemes and priors for classification: typed, and naming the remedy."""

from __future__ import annotations

import pytest
import torch
from dense import normal, prior

from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"pos_weight": -1.0}, errors.SettingError, "pos_weight"),
        ({"pos_weight": 0.0}, errors.SettingError, "pos_weight"),
        ({"pos_weight": NAN}, errors.SettingError, "pos_weight"),
        ({"pos_weight": [1.0, INF]}, errors.SettingError, "pos_weight"),
        ({"pos_weight": [1.0, 1.0, 1.0]}, errors.ShapeError, r"pos_weight.*2 tasks"),
        ({"pos_weight": [[1.0, 1.0]]}, errors.ShapeError, "pos_weight"),
        ({"tasks": 0}, errors.SettingError, "tasks"),
        ({"missing": "zero"}, errors.SettingError, "missing"),
        ({"prior_variance": -1.0}, errors.SettingError, "prior_variance"),
    ],
    ids=str,
)
def test_bernoulli_settings(settings, error, words) -> None:
    with pytest.raises(error, match=words):
        heads.Bernoulli(**{"in_features": 3, "tasks": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"classes": 1}, errors.SettingError, "at least 2"),
        ({"classes": 0}, errors.SettingError, "at least 2"),
        ({"classes": 2.0}, errors.SettingError, "integer"),
        ({"classes": "3"}, errors.SettingError, "integer"),
        ({"class_weight": [1.0, 1.0]}, errors.ShapeError, r"class_weight.*3 classes"),
        ({"class_weight": [1.0, 1.0, 0.0]}, errors.SettingError, "class_weight"),
        ({"class_weight": [1.0, -1.0, 1.0]}, errors.SettingError, "class_weight"),
        ({"class_weight": [1.0, NAN, 1.0]}, errors.SettingError, "class_weight"),
        ({"tasks": -1}, errors.SettingError, "tasks"),
    ],
    ids=str,
)
def test_categorical_settings(settings, error, words) -> None:
    with pytest.raises(error, match=words):
        heads.Categorical(**{"in_features": 3, "classes": 3, **settings})


def sick():
    head = heads.Bernoulli(3, 2, name="sick")
    return head, torch.randn(5, 3), torch.ones(5, 2), priors.isotropic(head, 1.0)


def kind():
    head = heads.Categorical(3, 3, name="kind")
    return head, torch.randn(5, 3), torch.ones(5, dtype=torch.long), priors.isotropic(head, 1.0)


SCHEMES = [inference.TaylorGGN, inference.Laplace]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_structures_that_do_not_fit(rng, scheme) -> None:
    head, h, y, p = sick()
    before = head.weight.detach().clone()
    with pytest.raises(errors.SettingError, match=r"sick.*'full', 'diag'.*'kron'"):
        scheme("kron").infer(head, h, y, p)
    with pytest.raises(errors.SettingError, match=r"sick.*diagonal prior.*Gaussian"):
        scheme("diag").infer(head, h, y, p.to_gaussian())
    three, h3, y3, p3 = kind()
    with pytest.raises(errors.SettingError, match=r"kind.*isotropic or Kronecker.*Gaussian"):
        scheme("kron").infer(three, h3, y3, prior(rng, three))
    uneven = posteriors.DiagonalGaussian(p3.mean, 1 + torch.rand(1, 12).double())
    with pytest.raises(errors.SettingError, match=r"kind.*isotropic"):
        scheme("kron").infer(three, h3, y3, uneven)
    assert torch.equal(head.weight, before)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_priors_that_are_no_gaussians_or_of_another_head(scheme) -> None:
    head, h, y, p = sick()
    with pytest.raises(errors.DtypeError, match=r"sick.*Gaussian prior.*Empirical"):
        scheme().infer(head, h, y, posteriors.Empirical(p.sample((3,))))
    with pytest.raises(errors.ShapeError, match=r"sick.*\[1, 12\].*\[2, 4\]"):
        scheme().infer(head, h, y, kind()[3])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda h, y: (h[:, :2], y), errors.ShapeError, "examples, 3"),
        (lambda h, y: (h[:0], y[:0]), errors.ShapeError, "empty"),
        (lambda h, y: (h * NAN, y), errors.NonFiniteError, "nan"),
        (lambda h, y: (h, y[:4]), errors.ShapeError, "targets"),
        (lambda h, y: (h, y + 2), errors.SettingError, "target of task 0, example 0, is 3"),
        (lambda h, y: (h, y.tolist()), errors.DtypeError, "tensor"),
        (lambda h, y: (h, (y, y > 0, y, y)), errors.ShapeError, "length 4"),
        (lambda h, y: (h, (y, None, y.long())), errors.DtypeError, "weight.*floating"),
    ],
)
@pytest.mark.parametrize("make", [sick, kind])
def test_inference_and_gradients_name_the_head(make, scheme, change, error, words) -> None:
    head, h, y, p = make()
    bad = change(h, y)
    with pytest.raises(error, match=f"{head.name}.*{words}"):
        scheme().infer(head, *bad, p)
    for estimator in (None, gradients.MonteCarlo(4)):
        with pytest.raises(error, match=f"{head.name}.*{words}"):
            gradients.distribution(head, p, *bad, estimator=estimator)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, NAN])
def test_laplace_settings(tolerance) -> None:
    with pytest.raises(errors.SettingError, match="tolerance"):
        inference.Laplace(tolerance=tolerance)
    with pytest.raises(errors.SettingError, match="max_steps"):
        inference.Laplace(max_steps=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_labels_of_any_integer_type(rng, dtype) -> None:
    """They mean the same as float32 (binary) and int64 (classes), in every stage."""
    h = normal(rng, 9, 3)
    binary = heads.Bernoulli(3, 2, pos_weight=2.0).double()
    multi = heads.Categorical(3, 2, tasks=2, class_weight=[1.0, 3.0]).double()
    y = torch.randint(0, 2, (9, 2), generator=rng)
    for head, usual in ((binary, y.double()), (multi, y)):
        if head is multi and dtype == torch.bool:
            continue
        p = priors.isotropic(head, 1.0)
        found = [inference.TaylorGGN().infer(head, h, v, p).mean for v in (y.to(dtype), usual)]
        assert torch.equal(*found)
        found = [gradients.distribution(head, p, h, v).mean for v in (y.to(dtype), usual)]
        assert torch.equal(*found)
        head.model(h, y.to(dtype), prior=p)


class Own(heads.Categorical):
    def negative_log_probs(self, features, targets, weight=None):
        return 2 * super().negative_log_probs(features, targets, weight)


def test_heads_without_an_expansion() -> None:
    """A likelihood that is no function of outputs would get that of the outputs: an error."""
    head = Own(3, 3, name="mine")
    y = torch.zeros(4, dtype=torch.long)
    with pytest.raises(errors.SettingError, match=r"mine.*sampling scheme"):
        inference.TaylorGGN().infer(head, torch.randn(4, 3), y, priors.isotropic(head, 1.0))
