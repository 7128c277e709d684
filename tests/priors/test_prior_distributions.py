"""Shaped priors agree with the dense matrices that they stand for."""

from __future__ import annotations

import pytest
import torch
from setups import bernoulli, categorical, close, gaussian, same

from bayesagg_pyro import errors, heads, inference, priors


@pytest.mark.parametrize("make", [gaussian, bernoulli, categorical])
def test_every_prior_agrees_with_its_dense_expansion(make, rng) -> None:
    """As a distribution, and through inference."""
    data = make(rng)
    head = data.head
    tasks, size = head.point().shape
    variance = torch.rand(tasks, size, generator=rng).double() + 0.2
    made = {
        "isotropic": (
            priors.isotropic(head, 0.3),
            torch.full((tasks, size), 0.3, dtype=torch.float64),
        ),
        "diagonal": (priors.diagonal(head, variance), variance),
        "weight_and_bias": (priors.weight_and_bias(head, 0.3, 4.0), None),
    }
    shape = (tasks, head.outputs_per_task, size // head.outputs_per_task)
    pattern = torch.full(shape, 0.3, dtype=torch.float64)
    pattern[..., -1] = 4.0
    made["weight_and_bias"] = (made["weight_and_bias"][0], pattern.flatten(1))
    scheme = inference.Conjugate() if make is gaussian else inference.TaylorGGN()
    for prior, expected in made.values():
        close(prior.variance, expected)
        dense = priors.dense(head, torch.diag_embed(expected))
        same(prior, dense)
        assert prior.outputs_per_task == dense.outputs_per_task == head.outputs_per_task
        at = torch.randn(tasks, size, generator=rng, dtype=torch.float64)
        close(prior.log_prob(at), dense.log_prob(at))
        rows = data.rows(slice(0, 20))
        same(scheme.infer(head, *rows, prior), scheme.infer(head, *rows, dense), 1e-9)


def test_one_variance_per_task(rng) -> None:
    head = heads.Gaussian(2, 3, bias=True)
    prior = priors.weight_and_bias(head, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    close(prior.variance, torch.tensor([[1.0, 1, 4], [2, 2, 5], [3, 3, 6]]).double())
    row = torch.tensor([0.5, 1.0, 2.0])
    close(priors.diagonal(head, row).variance, row.double().expand(3, -1))
    close(priors.diagonal(head, 2.0, mean=row).mean, row.double().expand(3, -1))


def test_a_dense_prior_is_shared_or_per_task(rng) -> None:
    head = heads.Gaussian(3, 2)
    root = torch.randn(2, 3, 3, generator=rng).double()
    covariance = root @ root.mT + torch.eye(3).double()
    close(priors.dense(head, covariance).covariance_matrix, covariance)
    shared = priors.dense(head, covariance[0], mean=[1.0, 2.0, 3.0])
    assert shared.precision_matrix.shape == (1, 3, 3)
    close(shared.covariance_matrix[0], covariance[0])


BAD = {
    "no bias": (lambda h: priors.weight_and_bias(h, 1.0, 1.0), errors.SettingError, "has no bias"),
    "negative": (
        lambda h: priors.diagonal(h, [1.0, -1.0, 1.0]),
        errors.SettingError,
        "positive and finite",
    ),
    "infinite": (
        lambda h: priors.diagonal(h, float("inf")),
        errors.SettingError,
        "positive and finite",
    ),
    "shape": (lambda h: priors.diagonal(h, [1.0, 1.0]), errors.ShapeError, r"\[3\] or \[2, 3\]"),
    "mean": (
        lambda h: priors.diagonal(h, 1.0, mean=float("nan")),
        errors.SettingError,
        "mean must be finite",
    ),
    "mean shape": (
        lambda h: priors.diagonal(h, 1.0, mean=[1.0]),
        errors.ShapeError,
        "prior means must be",
    ),
    "dense shape": (lambda h: priors.dense(h, torch.eye(2)), errors.ShapeError, r"\[3, 3\]"),
    "asymmetric": (
        lambda h: priors.dense(h, torch.eye(3) + torch.ones(3, 3).triu(1)),
        errors.SettingError,
        "symmetric",
    ),
    "indefinite": (
        lambda h: priors.dense(h, torch.diag(torch.tensor([1.0, 1.0, -0.5]))),
        errors.NumericalError,
        "smallest eigenvalue -0.5",
    ),
    "one of two indefinite": (
        lambda h: priors.dense(h, torch.diag_embed(torch.tensor([[1.0, 1, 1], [1, -0.5, 1]]))),
        errors.NumericalError,
        "smallest eigenvalue -0.5",
    ),
}


@pytest.mark.parametrize(("make", "error", "text"), BAD.values(), ids=BAD)
def test_bad_priors_are_named(make, error, text) -> None:
    with pytest.raises(error, match=text) as caught:
        make(heads.Gaussian(3, 2, name="energy"))
    assert "'energy'" in str(caught.value)


def test_biased_heads_check_their_tasks() -> None:
    head = heads.Gaussian(3, 2, bias=True)
    with pytest.raises(errors.ShapeError, match="one for each of 2 tasks"):
        priors.weight_and_bias(head, [1.0, 1.0, 1.0], 1.0)
    with pytest.raises(errors.SettingError, match="variance of the bias"):
        priors.weight_and_bias(head, 1.0, 0.0)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_symmetry_is_judged_in_the_units_of_the_covariance(unit: float) -> None:
    head = heads.Gaussian(3)
    matrix = unit * torch.eye(3, dtype=torch.float64)
    matrix[0, 1] += 1e-10 * unit
    close(
        priors.dense(head, matrix).covariance_matrix[0], unit * torch.eye(3).double(), unit * 1e-9
    )
    matrix[0, 1] += 1e-3 * unit
    with pytest.raises(errors.SettingError, match="symmetric"):
        priors.dense(head, matrix)


def test_a_prior_holds_no_graph_of_what_it_was_made_of() -> None:
    head = heads.Gaussian(3)
    variance = torch.ones(3, dtype=torch.float64, requires_grad=True)
    prior = priors.diagonal(head, variance, mean=variance)
    assert not any(tensor.requires_grad for tensor in prior.tensors().values())


def test_the_base_of_a_prior_over_time_moves_with_it() -> None:
    head = heads.Gaussian(3)
    tracker = priors.FullData().start(head, inference.Conjugate())
    tracker.to(torch.device("meta"))
    assert tracker._base.mean.device.type == "meta"


def test_priors_do_not_share_the_memory_of_what_they_were_made_of() -> None:
    """Else whoever goes on with the numbers, or a policy that writes in place, changes others."""
    head = heads.Gaussian(3, 2)
    numbers = {"mean": torch.ones(2, 3).double(), "variance": torch.full((3,), 2.0).double()}
    made = [
        priors.diagonal(head, **numbers),
        priors.dense(head, torch.diag(numbers["variance"]), mean=numbers["mean"]),
        priors.weight_and_bias(heads.Gaussian(2, 2, bias=True), numbers["variance"][:2], 2.0),
    ]
    before = [prior.tensors() for prior in made]
    before = [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in before]
    for tensor in numbers.values():
        tensor.mul_(7)
    for prior, tensors in zip(made, before, strict=True):
        for name, tensor in prior.tensors().items():
            assert torch.equal(tensor, tensors[name]), name
            tensor.add_(1)  # each number has a place of its own


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_number_that_is_not_finite_is_refused(bad) -> None:
    head = heads.Gaussian(3, 2)
    covariance, mean = torch.eye(3).double(), torch.zeros(3).double()
    covariance[1, 1] = mean[1] = bad
    with pytest.raises(errors.SettingError, match="must be finite and symmetric"):
        priors.dense(head, covariance)
    with pytest.raises(errors.SettingError, match="mean must be finite"):
        priors.diagonal(head, 1.0, mean=mean)
