"""A point instead of a posterior: the ordinary gradient, and linear scalarisation."""

from __future__ import annotations

import pytest
import torch
from problems import F64, normal
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, posteriors, priors


class World:
    """Three kinds of heads with missing labels on a small network."""

    def __init__(self, rng: torch.Generator, reduction: str, holes: bool, **settings) -> None:
        torch.manual_seed(3)
        self.backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
        self.heads = {
            "age": heads.Gaussian(5, 2, noise_scale=[0.5, 2.0], bias=True),
            "sick": heads.Bernoulli(5, 2, pos_weight=2.0),
            "kind": heads.Categorical(5, 3),
        }
        self.mtl = ba.BayesAgg(
            self.heads, inference=inference.Delta(), reduction=reduction, **settings
        ).double()
        self.x = normal(rng, 12, 4)
        values = {
            "age": normal(rng, 12, 2),
            "sick": (torch.rand(12, 2, generator=rng) < 0.5).double(),
            "kind": torch.randint(0, 3, (12, 1), generator=rng),
        }
        self.y = {
            name: (v, torch.rand(v.shape, generator=rng) < 0.6) if holes else v
            for name, v in values.items()
        }

    def gradients(self) -> list[torch.Tensor]:
        for module in (self.backbone, self.mtl):
            module.zero_grad(set_to_none=True)
        self.mtl.backward(self.backbone(self.x), self.y)
        modules = (self.backbone, *self.heads.values())
        return [p.grad.clone() for module in modules for p in module.parameters()]


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("power", [0.0, 0.7, 1.0, {"age": 0.9, "sick": 0.1, "kind": 0.5}])
def test_delta_is_linear_scalarisation_up_to_scale(rng, power, holes) -> None:
    """The backbone gets the gradient of the summed losses over the tasks' number; heads all of it.

    With holes the share of an example goes to its observed tasks alone, as in the engine's mean.
    """
    w = World(rng, "mean", holes, aggregation=aggregation.PrecisionWeighted.paper(power))
    expected = w.gradients()  # the warm-up is linear scalarisation
    w.mtl.update_prior()
    w.mtl.start_bayes()
    found = w.gradients()
    shared = len(list(w.backbone.parameters()))
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        factor = 5 if number < shared else 1
        torch.testing.assert_close(one * factor, other, rtol=1e-9, atol=1e-12)


def test_the_sum_needs_no_factor(rng) -> None:
    w = World(rng, "sum", True)
    expected = w.gradients()
    w.mtl.update_prior()
    w.mtl.start_bayes()
    for one, other in zip(w.gradients(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_certain_and_ordinary(rng) -> None:
    head = heads.Bernoulli(3, 2).double()
    h, y = normal(rng, 6, 3).requires_grad_(), (torch.rand(6, 2, generator=rng) < 0.5).double()
    prior = priors.isotropic(head, 1.0)
    point = inference.Delta().infer(head, h, y, prior)
    assert isinstance(point, posteriors.Point)
    grad = gradients.distribution(head, point, h, y)
    for task in range(2):
        loss = head.loss(head(h), y)[:, task].sum()
        (expected,) = torch.autograd.grad(loss, h, retain_graph=True)
        torch.testing.assert_close(grad.mean[task], expected)
    assert (grad.variance == 0).all()
    assert (grad.covariance_matrix == 0).all()
    assert grad.covariance_matrix.shape == (2, 6, 3, 3)
    torch.testing.assert_close(grad.sample((3,)), grad.mean.expand(3, -1, -1, -1))
    sampled = gradients.distribution(head, point, h, y, estimator=gradients.MonteCarlo(4))
    torch.testing.assert_close(sampled.mean, grad.mean)
    with torch.no_grad():
        head.weight += 1  # the posterior keeps the weights of its moment
    torch.testing.assert_close(gradients.distribution(head, point, h, y).mean, grad.mean)
    with pytest.raises(errors.DtypeError, match="AtPoint"):
        gradients.distribution(head, prior, h, y, estimator=gradients.AtPoint())


def test_a_certain_head_takes_all_the_weight(rng) -> None:
    heads_ = {"sure": heads.Gaussian(3), "unsure": heads.Gaussian(3)}
    schemes = {"sure": inference.Delta(), "unsure": inference.Conjugate()}
    mtl = ba.BayesAgg(heads_, aggregation.PrecisionWeighted(), inference=schemes).double()
    h, y = normal(rng, 5, 3), {name: normal(rng, 5, 1) for name in heads_}
    mtl.collect(h, y)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(h.clone().requires_grad_(), y)
    torch.testing.assert_close(mtl.info.weights, torch.tensor([1.0, 0.0], dtype=F64))


def test_a_point_goes_through_its_state(rng) -> None:
    head = heads.Categorical(3, 4).double()
    point = inference.Delta().infer(head, normal(rng, 2, 3), torch.tensor([0, 3]), None)
    again = posteriors.Posterior.from_state_dict(point.state_dict())
    assert torch.equal(again.mean, point.mean)
    assert again.weight_mean.shape == (4, 4)
    assert again.to(dtype=torch.float32).weight_mean.dtype == torch.float32
    assert (again.variance == 0).all()


@pytest.mark.parametrize("kind", [posteriors.Posterior, posteriors.Gaussian, posteriors.Empirical])
def test_an_estimator_at_a_point_is_for_points_alone(kind) -> None:
    """Also where no more is known of a scheme than that it gives posteriors."""
    head = heads.Bernoulli(3)
    gradients.AtPoint().check(head, posteriors.Point)
    with pytest.raises(errors.DtypeError, match=kind.__name__):
        gradients.AtPoint().check(head, kind)
