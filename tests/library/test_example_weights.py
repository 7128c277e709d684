"""A weight on an example multiplies its loss and its log-likelihood, in every stage."""

from __future__ import annotations

import pytest
import torch
from oracles import case, close
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, priors

NAN = float("nan")


@pytest.mark.parametrize("noise", [0.5, [0.3, 1.0, 2.0]], ids=str)
def test_a_weight_of_two_is_an_example_seen_twice(rng, noise) -> None:
    c = case(rng, noise=noise, bias=True)
    times = torch.randint(0, 4, (12,), generator=rng)
    rows = torch.repeat_interleave(torch.arange(12), times)
    weighted = (c.targets, None, times.double())
    one = inference.Conjugate().infer(c.head, c.features, weighted, c.prior)
    two = inference.Conjugate().infer(c.head, c.features[rows], c.targets[rows], c.prior)
    close(one.mean, two.mean)
    close(one.covariance_matrix, two.covariance_matrix.expand_as(one.covariance_matrix))


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("common", [False, True], ids=["per task", "common"])
def test_so_it_is_of_classes_in_every_structure(rng, structure, common) -> None:
    head = heads.Categorical(2, 3, tasks=2).double()
    x = torch.randn(9, 2, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (9, 2), generator=rng)
    times = torch.randint(0, 4, (9, 2), generator=rng)
    times[:, 1] = times[:, 0] if common else times[:, 1]
    prior, scheme = priors.isotropic(head, 0.5), inference.TaylorGGN(structure)
    weight = times[:, 0].double() if common else times.double()
    one = scheme.infer(head, x, (y, None, weight), prior)
    few = scheme.infer(head, x, (y, None, 0.01 * weight), prior)
    for task in range(2):
        rows = torch.repeat_interleave(torch.arange(9), times[:, task])
        two = scheme.infer(head, x[rows], y[rows], prior)
        close(one.mean[task], two.mean[task])
        close(one.covariance_matrix[task], two.covariance_matrix[task])
        data = two.precision_matrix[task] - 2 * torch.eye(9).double()
        close(few.precision_matrix[task], 0.01 * data + 2 * torch.eye(9).double())
    kept = scheme.statistics(head, inference.Storage())
    for part in (slice(0, 4), slice(4, 9)):
        kept.add(x[part], head.parse_targets((y[part], None, weight[part]), len(x[part])))
    close(kept.posterior(prior).covariance_matrix, one.covariance_matrix)
    kept.load_state_dict(kept.state_dict())
    close(kept.posterior(prior).covariance_matrix, one.covariance_matrix)


@pytest.mark.parametrize("estimator", [None, gradients.MonteCarlo(64)], ids=str)
def test_gradients_scale_with_the_weight(rng, estimator) -> None:
    c = case(rng)
    weight = torch.rand(12, 3, generator=rng, dtype=torch.float64)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    found = []
    for targets in (c.targets, (c.targets, None, weight)):
        g = torch.Generator().manual_seed(3)
        found.append(
            gradients.distribution(c.head, p, c.features, targets, estimator=estimator, generator=g)
        )
    plain, scaled = found
    factor = weight.T[..., None]
    close(scaled.mean, plain.mean * factor)
    close(scaled.variance, plain.variance * factor**2)
    draws = [grad.sample((5,), generator=torch.Generator().manual_seed(4)) for grad in found]
    close(draws[1], draws[0] * factor)
    if estimator is None:
        close(scaled.covariance_matrix, plain.covariance_matrix * factor[..., None] ** 2)


@pytest.mark.parametrize("bayes", [False, True])
def test_weights_of_one_change_nothing(rng, bayes) -> None:
    updates = []
    for ones in (False, True):
        torch.manual_seed(0)
        backbone = nn.Linear(4, 5).double()
        mtl = ba.BayesAgg({"a": heads.Gaussian(5, tasks=2)}).double()
        x, y = torch.randn(9, 4).double(), torch.randn(9, 2).double()
        targets = {"a": (y, None, torch.ones(9).double()) if ones else y}
        mtl.backward(backbone(x), targets)
        mtl.update_prior()
        if bayes:
            mtl.start_bayes()
            backbone.zero_grad()
            mtl.backward(backbone(x), targets)
        updates.append(backbone.weight.grad)
    close(*updates)


def test_the_warmup_loss_is_weighted(rng) -> None:
    head = heads.Gaussian(5, tasks=2).double()
    mtl = ba.BayesAgg({"a": head})
    h = torch.randn(9, 5, generator=rng, dtype=torch.float64).requires_grad_()
    y = torch.randn(9, 2, generator=rng, dtype=torch.float64)
    weight = torch.rand(9, generator=rng, dtype=torch.float64)
    losses = mtl.backward(h, {"a": (y, None, weight)})
    expected = (weight[:, None] * (y - h @ head.weight.T) ** 2).sum(0) / 9
    close(losses["a"], expected.detach())
    (grad,) = torch.autograd.grad(expected.sum(), h)
    close(h.grad, grad)


@pytest.mark.parametrize("value", [NAN, float("inf"), -1.0])
@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("mode", ["now", "deferred"])
def test_bad_weights(rng, value, bayes, mode) -> None:
    mtl = ba.BayesAgg({"a": heads.Gaussian(5, tasks=2)}, validate=mode)
    y, weight = torch.randn(9, 2, generator=rng), torch.ones(9)
    features = torch.randn(9, 5, generator=rng)
    mtl.collect(features, {"a": y})
    mtl.update_prior()
    if bayes:
        mtl.start_bayes()
    weight[2] = value
    h = features.requires_grad_()
    if mode == "now":
        with pytest.raises(errors.BayesAggError, match=r"'a'.*weight"):
            mtl.backward(h, {"a": (y, None, weight)})
        assert h.grad is None
    else:
        mtl.backward(h, {"a": (y, None, weight)})
        assert (h.grad == 0).all()
        with pytest.raises(errors.NonFiniteError):
            mtl.update_prior()


@pytest.mark.parametrize("shape", [(9, 3), (8,), (9, 1, 1), ()], ids=str)
def test_weights_of_another_shape(rng, shape) -> None:
    head = heads.Gaussian(5, tasks=2, name="a")
    with pytest.raises(errors.ShapeError, match=r"'a'.*weight"):
        head.parse_targets((torch.zeros(9, 2), None, torch.ones(shape)), 9)


def test_what_does_not_count_may_overflow() -> None:
    """A weight of 0 beside moments that no float32 holds."""
    torch.manual_seed(0)
    head = heads.Gaussian(4, 2)
    posterior = priors.isotropic(head, 1.0)
    h, y, weight = torch.randn(3, 4), torch.randn(3, 2), torch.tensor([1.0, 0.0, 2.0])
    y[1] = 1e30
    found = gradients.distribution(head, posterior, h, (y, None, weight))
    rows = torch.tensor([0, 2])
    alone = gradients.distribution(head, posterior, h[rows], (y[rows], None, weight[rows]))
    for whole, part in ((found.mean, alone.mean), (found.variance, alone.variance)):
        assert whole.isfinite().all()
        torch.testing.assert_close(whole[:, rows], part)
    assert (found.covariance_matrix[:, 1] == 0).all()
    assert found.sample((2,)).isfinite().all()
    assert found.moment_error.variance.isfinite().all()


class _Line(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("by", ["mask", "weight"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: heads.Poisson(1),
        lambda: heads.Heteroscedastic(1),
        lambda: heads.Network(_Line(1), heads.Poisson(1)),
    ],
    ids=["Poisson", "Heteroscedastic", "network"],
)
@pytest.mark.parametrize("scheme", [inference.TaylorGGN(), inference.Laplace()], ids=repr)
def test_an_example_that_does_not_count_may_overflow_its_head(make, scheme, by) -> None:
    """The exponentials of all three overflow at the last example."""
    head = make()
    with torch.no_grad():
        for weight in head.parameters():
            weight.fill_(-0.5 if isinstance(head, heads.Heteroscedastic) else 0.5)
    x = torch.tensor([[0.1], [0.2], [-0.1], [3e3]])
    y, counts = torch.tensor([[1.0], [0.0], [2.0], [1.0]]), torch.tensor([[1.0]] * 3 + [[0.0]])
    given = (y, counts > 0) if by == "mask" else (y, None, counts)
    prior = priors.isotropic(head, 0.1)
    one, two = scheme.infer(head, x, given, prior), scheme.infer(head, x[:3], y[:3], prior)
    close(one.mean, two.mean)
    close(one.covariance_matrix, two.covariance_matrix)

    leaf = x.clone().requires_grad_()
    mtl = ba.BayesAgg({"y": head}, inference=scheme)
    mtl.backward(leaf, {"y": given})
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[:3] != 0).all()
    assert leaf.grad[3] == 0
