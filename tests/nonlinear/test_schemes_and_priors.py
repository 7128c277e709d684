"""Other stages with heads that are not linear: what runs, what is refused, what must agree."""

from __future__ import annotations

import sys

import pytest
import torch
from pyro_models import D, linear, two_tasks
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors
from bayesagg_pyro.heads._part import divisible


def network(last: bool = False) -> heads.Head:
    module = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    likelihood = heads.Gaussian(D, tasks=2, bias=True, noise_scale=0.5).double()
    return (
        heads.Network.last_layer(module, likelihood) if last else heads.Network(module, likelihood)
    )


def process() -> heads.Head:
    points = torch.randn(5, D, dtype=torch.float64)
    return heads.GaussianProcess(D, tasks=2, inducing=points, noise_scale=0.5).double()


HEADS = {
    "network": network,
    "last layer": lambda: network(last=True),
    "process": process,
    "pyro": lambda: heads.FromPyro(two_tasks, D, tasks=2),
}


def data(rng: torch.Generator, n: int = 10) -> tuple[Tensor, Tensor]:
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    return h, torch.randn(n, 2, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("kind", HEADS)
def test_known_weights_give_the_ordinary_gradient(kind: str, rng: torch.Generator) -> None:
    head = HEADS[kind]()
    h, y = data(rng)
    posterior = inference.Delta().infer(head, h, y, priors.isotropic(head, 1.0))
    grad = gradients.distribution(head, posterior, h, y)
    leaf = h.clone().requires_grad_()
    loss = head.losses(leaf, head.parse_targets(y, len(h)), posterior.mean)
    for t in range(2):
        (expected,) = torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)
        torch.testing.assert_close(grad.mean[t], expected)
    assert (grad.variance == 0).all()


POLICIES = [
    priors.FullData(1.0),
    priors.FullData(1.0, storage=inference.Storage(streaming=True)),
    priors.PreviousBatch(),
    priors.Running(half_life=20),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("kind", HEADS)
def test_policies_of_the_prior(kind: str, policy: priors.Policy, rng: torch.Generator) -> None:
    def engine() -> ba.BayesAgg:
        return ba.BayesAgg(
            {"y": HEADS[kind]()},
            inference=inference.TaylorGGN(),
            prior=policy,
            estimator=gradients.MonteCarlo(8),
            generator=torch.Generator().manual_seed(0),
        )

    h, y = data(rng)
    mtl = engine()
    mtl.backward(h.clone().requires_grad_(), {"y": y})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(h.clone().requires_grad_(), {"y": y})  # in the middle of an epoch ...
    other = engine()
    other.load_state_dict(mtl.state_dict())  # ... another goes on
    grads = []
    for each in (mtl, other):
        each.update_prior()
        leaf = h.clone().requires_grad_()
        each.backward(leaf, {"y": y})
        grads.append(leaf.grad)
    assert grads[0] is not None
    assert (grads[0] != 0).any()
    assert torch.equal(*grads)  # type: ignore[arg-type]


def test_a_prior_of_the_previous_posterior_counts_the_data_once(rng: torch.Generator) -> None:
    """Two halves one after the other are the whole: exact where the model is linear-Gaussian."""
    h, y = data(rng)
    for head in (heads.FromPyro(linear, D), heads.FromPyro(two_tasks, D, tasks=2), process()):
        targets = y[:, : head.tasks]
        scheme, prior = inference.Laplace(), priors.isotropic(head, 1.0)
        whole = scheme.infer(head, h, targets, prior)
        half = scheme.infer(head, h[:4], targets[:4], prior)
        both = scheme.infer(head, h[4:], targets[4:], half)
        torch.testing.assert_close(both.mean, whole.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            both.covariance_matrix, whole.covariance_matrix, rtol=1e-8, atol=1e-8
        )


def test_noise_of_an_embedded_head_can_be_integrated_out(rng: torch.Generator) -> None:
    """The exact moments of a normal-inverse-gamma posterior against draws from it."""
    head = process()
    assert isinstance(head, heads.Gaussian)
    h, y = data(rng, 3)
    size = head.weight_size
    posterior = posteriors.NormalInverseGamma(
        torch.randn(2, size, generator=rng, dtype=torch.float64),
        4 * torch.eye(size, dtype=torch.float64)[None],
        torch.full((2,), 12.0, dtype=torch.float64),
        torch.full((2,), 12.0, dtype=torch.float64),
    )
    exact = gradients.distribution(head, posterior, h, y)
    draws = gradients.distribution(
        head, posterior, h, y, estimator=gradients.MonteCarlo(20_000, generator=rng)
    )
    torch.testing.assert_close(exact.variance, draws.variance, rtol=0.1, atol=1e-6)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    h, y = data(rng)
    for kind in ("network", "pyro", "last layer", "process"):
        head = HEADS[kind]()
        with pytest.raises(errors.SettingError, match="laplace-torch has no"):
            inference.LaplaceTorch().infer(head, h, y, priors.isotropic(head, 1.0))
        assert not divisible(head)  # no task of it can be worked on by itself
    monkeypatch.setitem(sys.modules, "gpytorch.kernels", None)
    with pytest.raises(errors.MissingPackageError, match=r"bayesagg_pyro\[gp\]"):
        heads.GaussianProcess(D)


def test_far_from_the_points_a_classifier_knows_nothing(rng: torch.Generator) -> None:
    h, y = data(rng, 40)
    points = heads.InducingPoints(D, 8)
    points.place(h, generator=rng)
    head = heads.Bernoulli(D, tasks=2, bias=False).embed(points)
    labels = (h[:, :2] > 0).double()
    posterior = inference.Laplace().infer(head, h, labels, priors.isotropic(head, 1.0))
    assert (head.predictive(h, posterior).probs - 0.5).abs().mean() > 0.1
    far = head.predictor_moments(h + 100, posterior)
    prior = points.kernel.outputscale.double().expand_as(far.variance)
    torch.testing.assert_close(far.variance, prior.detach())
    torch.testing.assert_close(far.mean, 0 * y)


@pytest.mark.parametrize("kind", HEADS)
def test_log_joints_take_both_kinds_of_derivatives(kind: str, rng: torch.Generator) -> None:
    head = HEADS[kind]()
    h, y = data(rng)
    parsed, prior = head.parse_targets(y, len(h)), priors.isotropic(head, 1.0)
    weight = torch.randn(3, *head.point().shape, generator=rng, dtype=torch.float64)

    def total(w: Tensor) -> Tensor:
        return inference.log_joint(head, w, h, parsed, prior).sum()

    leaf = weight.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(leaf), leaf)
    if kind == "process":  # GPyTorch's kernels cannot be transformed by torch.func
        assert slope.isfinite().all()
        return
    torch.testing.assert_close(torch.func.grad(total)(weight), slope)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(weight), slope)
