"""Network heads: GGN of all parameters, sampled gradients, and the linear special case."""

from __future__ import annotations

import copy
import math

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

N, D = 15, 4

LIKELIHOODS = {
    "gaussian": lambda: heads.Gaussian(D, tasks=3, bias=True, noise_scale=[0.5, 1.0, 2.0]),
    "bernoulli": lambda: heads.Bernoulli(D, tasks=3, pos_weight=2.0),
    "softmax": lambda: heads.Categorical(D, 3, class_weight=[1.0, 2.0, 0.5]),
    "own noise": lambda: heads.Heteroscedastic(D, tasks=2),
    "two softmax": lambda: heads.Categorical(D, 2, tasks=2),
}


def data(head: heads.Head, rng: torch.Generator, n: int = N) -> tuple[Tensor, Tensor]:
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    if isinstance(head, heads.Categorical):
        return h, torch.randint(head.classes, (n, head.tasks), generator=rng)
    y = torch.randn(n, head.tasks, generator=rng, dtype=torch.float64)
    return h, (y > 0).double() if head.target_kind == "binary" else y


def mlp(outputs: int, hidden: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(D, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def outputs_of(head: heads.Head) -> int:
    return head.tasks * head.outputs_per_task


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize(
    "scheme",
    [inference.TaylorGGN(), inference.TaylorGGN("diag"), inference.Laplace(tolerance=1e-12)],
    ids=repr,
)
def test_one_linear_layer_is_the_linear_head(
    kind: str, scheme: inference.Scheme, rng: torch.Generator
) -> None:
    linear = LIKELIHOODS[kind]().double()
    layer = nn.Linear(D, outputs_of(linear)).double()
    network = heads.Network(layer, linear)
    with torch.no_grad():
        linear.weight.copy_(torch.cat([layer.weight, layer.bias[:, None]], 1))
    h, y = data(linear, rng)
    mask = torch.rand(y.shape, generator=rng) > 0.3
    weight = torch.rand(y.shape, generator=rng, dtype=torch.float64)
    one = scheme.infer(linear, h, (y, mask, weight), priors.isotropic(linear, 2.0))
    two = scheme.infer(network, h, (y, mask, weight), priors.isotropic(network, 2.0))
    rows = torch.arange(outputs_of(linear) * (D + 1)).reshape(-1, D + 1)
    order = torch.cat([rows[:, :D].flatten(), rows[:, D]])  # weights, then biases
    torch.testing.assert_close(two.mean[0], one.mean.flatten()[order], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(two.variance[0], one.variance.flatten()[order], rtol=1e-8, atol=1e-8)
    blocks = torch.block_diag(*one.to_gaussian().precision_matrix.expand(linear.tasks, -1, -1))
    torch.testing.assert_close(
        two.to_gaussian().precision_matrix[0], blocks[order][:, order], rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_curvature_is_the_sum_of_JHJ(kind: str, rng: torch.Generator) -> None:
    likelihood = LIKELIHOODS[kind]()
    head = heads.Network(mlp(outputs_of(likelihood)), likelihood)
    h, y = data(likelihood, rng)
    mask = torch.rand(y.shape, generator=rng) > 0.3
    if isinstance(likelihood, heads.Heteroscedastic):
        pytest.skip("its H is Fisher's information, not the Hessian")
    point = head.point().detach()[0]
    precision = 0.5 * torch.eye(len(point), dtype=torch.float64)
    slope = 0.5 * point
    for x, label, seen in zip(h, y, mask, strict=True):

        def outputs(w: Tensor, x: Tensor = x) -> Tensor:
            return head.flat_outputs(x[None], w)[0]

        def nll(f: Tensor, label: Tensor = label, seen: Tensor = seen) -> Tensor:
            each = head.negative_log_prob(head.shaped(f[None]), label[None])
            return (each * seen).sum()

        f = outputs(point)
        j = torch.autograd.functional.jacobian(outputs, point)
        precision = precision + j.T @ torch.autograd.functional.hessian(nll, f) @ j
        slope = slope + j.T @ torch.autograd.functional.jacobian(nll, f)
    found = inference.TaylorGGN().infer(head, h, (y, mask), priors.isotropic(head, 2.0))
    torch.testing.assert_close(found.precision_matrix[0], precision)
    torch.testing.assert_close(found.mean[0], point - torch.linalg.solve(precision, slope))
    diagonal = inference.TaylorGGN("diag").infer(head, h, (y, mask), priors.isotropic(head, 2.0))
    assert isinstance(diagonal, posteriors.DiagonalGaussian)
    torch.testing.assert_close(diagonal.precision[0], precision.diagonal())


def test_chunks_of_examples_add_up(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    head = heads.Network(mlp(3), heads.Bernoulli(D, tasks=3))
    h, y = data(head.observation, rng)
    prior = priors.isotropic(head, 1.0)
    whole = inference.TaylorGGN().infer(head, h, y, prior)
    monkeypatch.setattr("bayesagg_pyro.inference._expansion.LARGE", 4 * 3 * head.weight_size)
    parts = inference.TaylorGGN().infer(head, h, y, prior)
    torch.testing.assert_close(parts.precision_matrix, whole.precision_matrix)
    torch.testing.assert_close(parts.mean, whole.mean)


def test_laplace_ends_where_the_gradient_vanishes(rng: torch.Generator) -> None:
    head = heads.Network(mlp(3), heads.Bernoulli(D, tasks=3))
    h, y = data(head.observation, rng, 40)
    prior = priors.isotropic(head, 1.0)
    found = inference.Laplace().infer(head, h, y, prior)
    assert found.info is not None
    assert found.info.converged is not None
    assert found.info.converged.all()
    weight = found.mean.clone().requires_grad_()
    joint = inference.log_joint(head, weight, h, head.parse_targets(y, 40), prior)
    (slope,) = torch.autograd.grad(joint.sum(), weight)
    assert slope.abs().max() < 1e-5


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_sampled_gradients_are_those_of_the_loss(kind: str, rng: torch.Generator) -> None:
    likelihood = LIKELIHOODS[kind]()
    head = heads.Network(mlp(outputs_of(likelihood)), likelihood)
    h, y = data(likelihood, rng, 5)
    posterior = inference.TaylorGGN().infer(head, h, y, priors.isotropic(head, 0.5))
    grad = gradients.distribution(head, posterior, h, y)
    found = grad.sample((4,), generator=torch.Generator().manual_seed(3))
    weight = posterior.sample((4,), generator=torch.Generator().manual_seed(3))
    for s in range(4):
        leaf = h.clone().requires_grad_()
        loss = likelihood.loss(head(leaf, weight[s]), y)
        for t in range(head.tasks):
            (expected,) = torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)
            torch.testing.assert_close(found[s, t], expected)


def test_moments_match_the_draws_in_any_chunks(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = heads.Network(mlp(2), heads.Gaussian(D, tasks=2))
    h, y = data(head.observation, rng, 6)
    mask = torch.ones(6, 2, dtype=torch.bool)
    mask[0, 0] = False
    posterior = inference.TaylorGGN().infer(head, h, (y, mask), priors.isotropic(head, 0.5))
    monkeypatch.setattr("bayesagg_pyro.gradients._monte_carlo.LARGE", 7 * head.numbers_per_draw(6))
    estimator = gradients.MonteCarlo(50, generator=torch.Generator().manual_seed(5))
    grad = gradients.distribution(head, posterior, h, (y, mask), estimator=estimator)
    generator = torch.Generator().manual_seed(5)
    weight = torch.cat([posterior.sample((n,), generator=generator) for n in (*[7] * 7, 1)])
    leaf = h.clone().requires_grad_()
    rows = []
    for w in weight:
        loss = head.loss(head(leaf, w), y) * mask
        each = [torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)[0] for t in (0, 1)]
        rows.append(torch.stack(each))
    sample = torch.stack(rows)
    torch.testing.assert_close(grad.mean, sample.mean(0))
    torch.testing.assert_close(grad.variance, sample.var(0))
    assert (grad.mean[0, 0] == 0).all()


def test_streamed_sums_equal_one_expansion(rng: torch.Generator) -> None:
    head = heads.Network(mlp(2), heads.Bernoulli(D, tasks=2))
    h, y = data(head.observation, rng, 12)
    scheme, prior = inference.TaylorGGN(), priors.isotropic(head, 1.0)
    sums = scheme.statistics(head, inference.Storage(streaming=True))
    kept = scheme.statistics(head, inference.Storage())
    for rows in (slice(0, 5), slice(5, 12)):
        parsed = head.parse_targets(y[rows], len(h[rows]))
        sums.add(h[rows], parsed)
        kept.add(h[rows], parsed)
    once = scheme.infer(head, h, y, prior)
    for statistics in (sums, kept):
        found = statistics.posterior(prior)
        torch.testing.assert_close(found.mean, once.mean)
        torch.testing.assert_close(found.precision_matrix, once.precision_matrix)


def test_last_layer_is_the_same_function_with_a_posterior_per_task(rng: torch.Generator) -> None:
    module = mlp(3)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    head = heads.Network.last_layer(module, heads.Gaussian(D, tasks=3, bias=True).double())
    h, y = data(head, rng)
    torch.testing.assert_close(head(h), module(h))
    assert head.point().shape == (3, 4)
    posterior = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    phi = module[1](module[0](h)).detach()
    plain = heads.Gaussian(3, tasks=3, bias=True)
    expected = inference.Conjugate().infer(plain, phi, y, priors.isotropic(plain, 1.0))
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.covariance_matrix, expected.covariance_matrix)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_last_layer_of_a_single_linear_layer_is_the_linear_head(rng: torch.Generator) -> None:
    layer = nn.Linear(D, 2).double()
    head = heads.Network.last_layer(layer, heads.Bernoulli(D, tasks=2).double())
    plain = heads.Bernoulli(D, tasks=2).double()
    plain.load_state_dict({"weight": head.weight.detach()})
    h, y = data(plain, rng)
    scheme = inference.TaylorGGN()
    one, two = (scheme.infer(x, h, y, priors.isotropic(x, 1.0)) for x in (head, plain))
    a = gradients.distribution(head, one, h, y)
    b = gradients.distribution(plain, two, h, y)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.variance, b.variance)


def test_predictive_is_the_mixture_over_draws(rng: torch.Generator) -> None:
    head = heads.Network(mlp(2), heads.Gaussian(D, tasks=2, noise_scale=0.3))
    h, y = data(head.observation, rng)
    posterior = inference.Laplace().infer(head, h, y, priors.isotropic(head, 0.5))
    p = head.predictive(h, posterior, samples=40, generator=torch.Generator().manual_seed(7))
    weight = posterior.sample((40,), generator=torch.Generator().manual_seed(7))
    f = torch.stack([head(h, w) for w in weight])
    torch.testing.assert_close(p.mean, f.mean(0))
    torch.testing.assert_close(p.variance, f.var(0, correction=0) + 0.09)
    each = torch.distributions.Normal(f, 0.3).log_prob(y).logsumexp(0) - math.log(40)
    torch.testing.assert_close(p.log_prob(y), each)
    drawn = p.sample((4000,))
    assert drawn.shape == (4000, N, 2)
    assert ((drawn.mean(0) - p.mean).abs() < 5 * p.variance.sqrt() / 4000**0.5).all()
    classes = heads.Network(mlp(3), heads.Categorical(D, 3))
    q = classes.predictive(h, priors.isotropic(classes, 1.0))
    assert q.probs.shape == (N, 1, 3)
    torch.testing.assert_close(q.probs.sum(-1), torch.ones(N, 1, dtype=torch.float64))


def test_the_pyro_model_is_the_log_joint(rng: torch.Generator) -> None:
    head = heads.Network(mlp(3), heads.Bernoulli(D, tasks=3), prior_variance=2.0)
    h, y = data(head.observation, rng)
    w = torch.randn(1, head.weight_size, generator=rng, dtype=torch.float64)
    model = poutine.condition(head.model, data={"head.weight": w})
    found = poutine.trace(model).get_trace(h, y).log_prob_sum()
    prior = priors.isotropic(head, 2.0)
    expected = inference.log_joint(head, w, h, head.parse_targets(y, N), prior)
    torch.testing.assert_close(found, expected.sum())
    draws = {"head.weight": torch.randn(5, 1, 1, head.weight_size, dtype=torch.float64)}
    out = pyro.infer.Predictive(head.model, draws, parallel=True)(h)
    assert out["head.targets"].shape == (5, N, 3)


def test_copies_states_and_frozen_parameters(rng: torch.Generator) -> None:
    head = heads.Network(mlp(2), heads.Gaussian(D, tasks=2))
    other = heads.Network(mlp(2), heads.Gaussian(D, tasks=2))
    h, _ = data(head.observation, rng)
    assert not torch.equal(head(h), other(h))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(h), other(h))
    assert torch.equal(copy.deepcopy(head)(h), head(h))
    module = mlp(2)
    module[0].requires_grad_(False)
    assert heads.Network(module, heads.Gaussian(D, tasks=2)).weight_size == 2 * 3 + 2
    draws = torch.randn(2, 3, 1, head.weight_size, generator=rng, dtype=torch.float64)
    stacked = torch.stack([torch.stack([head(h, w) for w in row]) for row in draws])
    torch.testing.assert_close(head(h, draws), stacked)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(errors.ShapeError, match=r"gives 2 outputs .* need 3"):
        heads.Network(mlp(2), heads.Gaussian(D, tasks=3))
    with pytest.raises(errors.SettingError, match="nothing to infer"):
        heads.Network(mlp(2).requires_grad_(False), heads.Gaussian(D, tasks=2))
    with pytest.raises(errors.SettingError, match="plain head"):
        heads.Network(mlp(2), heads.Network(mlp(2), heads.Gaussian(D, tasks=2)))
    head = heads.Network(mlp(3), heads.Categorical(D, 3))
    with pytest.raises(errors.SettingError, match=r"one of \('full', 'diag'\)"):
        inference.TaylorGGN("kron").statistics(head, inference.Storage())
    with pytest.raises(errors.DtypeError, match="Conjugate"):
        inference.Conjugate().statistics(head, inference.Storage())
    several = heads.Network(mlp(3), heads.Bernoulli(D, tasks=3))
    with pytest.raises(errors.ShapeError, match="1, shared weights"):
        several.check_weights(priors.isotropic(heads.Gaussian(D, tasks=2), 1.0), "prior")
    with pytest.raises(errors.SettingError, match="bias=True"):
        heads.Network.last_layer(mlp(2), heads.Gaussian(D, tasks=2))
    ends_otherwise = nn.Sequential(nn.Linear(D, 2), nn.Tanh())
    with pytest.raises(errors.SettingError, match=r"last torch\.nn\.Linear"):
        heads.Network.last_layer(ends_otherwise, heads.Bernoulli(D, tasks=2))
    bernoulli = heads.Network(mlp(1), heads.Bernoulli(D))
    with pytest.raises(errors.SettingError, match="binary targets are 0 or 1"):
        bernoulli.parse_targets(torch.full((3,), 2.0), 3)


def test_bad_targets_are_reported_under_the_name_in_use() -> None:
    head = heads.Network(nn.Linear(D, 1), heads.Bernoulli(D))
    head.name = "toxic"  # as the engine does
    with pytest.raises(errors.SettingError, match="head 'toxic'"):
        head.parse_targets(torch.full((N, 1), 2.0), N)
