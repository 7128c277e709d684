"""Heads made of Pyro models: against Pyro's own densities, autograd and the Gaussian head."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro_models import D, binary, classes, linear, mixed, two_tasks
from torch import Tensor

from bayesagg_pyro import gradients, heads, inference, posteriors, predictive, priors
from bayesagg_pyro.errors import ShapeError
from bayesagg_pyro.heads._trace import from_normal

N = 12


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


PRIORS = {
    "normal": dist.Normal(one(0.5), one(2.0)),
    "lognormal": dist.LogNormal(one(0.5), one(0.7)),
    "halfnormal": dist.HalfNormal(one(1.5)),
    "halfcauchy": dist.HalfCauchy(one(1.5)),
    "exponential": dist.Exponential(one(0.4)),
    "uniform": dist.Uniform(one(-1.0), one(3.0)),
    "laplace": dist.Laplace(one(0.3), one(2.0)),
    "gumbel": dist.Gumbel(one(0.3), one(2.0)),
    "weibull": dist.Weibull(one(1.3), one(2.0)),
    "logit-normal": dist.TransformedDistribution(
        dist.Normal(one(0.0), one(1.0)), [dist.transforms.SigmoidTransform()]
    ),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_maps_of_a_standard_normal_have_the_right_density(kind: str) -> None:
    """p(T(w)) |T'(w)| = N(w; 0, 1)."""
    fn = PRIORS[kind]
    for value in (-4.0, -1.3, -0.2, 0.4, 1.5, 4.0):
        w = one(value).requires_grad_()
        z = from_normal(fn, w)
        (slope,) = torch.autograd.grad(z.sum(), w)
        found = fn.log_prob(z.detach()) + slope.abs().log()
        expected = torch.distributions.Normal(0.0, 1.0).log_prob(w.detach())
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    draws = torch.linspace(-6, 6, 5, dtype=torch.float64)[:, None]
    together = torch.func.vmap(partial(from_normal, fn))(draws)  # a warning is an error here
    torch.testing.assert_close(together, torch.stack([from_normal(fn, w) for w in draws]))


def test_a_dense_normal_is_mapped_by_its_factor(rng: torch.Generator) -> None:
    tril = normal(rng, D, D).tril(-1) + torch.eye(D)
    fn = dist.MultivariateNormal(torch.ones(D, dtype=torch.float64), scale_tril=tril)
    w = normal(rng, D)
    torch.testing.assert_close(from_normal(fn, w), 1 + tril @ w)
    assert torch.equal(from_normal(fn.to_event(0), w), from_normal(fn, w))


@pytest.mark.parametrize("scheme", [inference.Laplace(), inference.TaylorGGN()], ids=repr)
def test_a_linear_gaussian_model_is_the_gaussian_head(
    scheme: inference.Scheme, rng: torch.Generator
) -> None:
    head, plain = heads.FromPyro(linear, D), heads.Gaussian(D, noise_scale=0.5)
    h, y = normal(rng, N, D), normal(rng, N, 1)
    mask = torch.rand(N, 1, generator=rng) > 0.3
    weight = torch.rand(N, 1, generator=rng, dtype=torch.float64)
    found = scheme.infer(head, h, (y, mask, weight), priors.isotropic(head, 1.0))
    prior = posteriors.Gaussian(
        torch.ones(1, D, dtype=torch.float64), 0.25 * torch.eye(D, dtype=torch.float64)[None]
    )
    exact = inference.Conjugate().infer(plain, h, (y, mask, weight), prior)
    torch.testing.assert_close(1 + 2 * found.mean, exact.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        4 * found.covariance_matrix, exact.covariance_matrix, rtol=1e-9, atol=1e-9
    )
    # Predictions agree, and gradients do but for the loss' scale: −log p is (y − f)² / 2τ².
    p = head.predictive(h, found, samples=100)
    q = plain.predictive(h, exact)
    assert ((p.mean - q.mean).abs() < 5 * (q.variance - 0.25).sqrt() / 100**0.5).all()
    torch.testing.assert_close(p.variance - 0.25, q.variance - 0.25, rtol=0.6, atol=0)
    estimator = gradients.MonteCarlo(1000, generator=rng)
    mine = gradients.distribution(head, found, h, (y, mask), estimator=estimator)
    theirs = gradients.distribution(plain, exact, h, (y, mask))
    std = theirs.variance.sqrt() / 0.5
    assert ((mine.mean - theirs.mean / 0.5).abs() <= 5 * std / 1000**0.5).all()
    assert (mine.mean[0, ~mask[:, 0]] == 0).all()


def test_two_tasks_in_one_model_are_two_gaussian_tasks(rng: torch.Generator) -> None:
    head, plain = heads.FromPyro(two_tasks, D, tasks=2), heads.Gaussian(D, 2, noise_scale=0.5)
    assert head.layout.observed == {"y": 2}
    h, y = normal(rng, N, D), normal(rng, N, 2)
    found = inference.Laplace().infer(head, h, y, priors.isotropic(head, 1.0))
    exact = inference.Conjugate().infer(plain, h, y, priors.isotropic(plain, 1.0))
    torch.testing.assert_close(found.mean.reshape(2, D), exact.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        found.covariance_matrix[0],
        torch.block_diag(*exact.covariance_matrix.expand(2, -1, -1)),
        rtol=1e-9,
        atol=1e-9,
    )


MODELS = {
    "mixed": (mixed, 2, "real"),
    "binary": (binary, 1, "binary"),
    "classes": (classes, 1, "class"),
    "two tasks": (two_tasks, 2, "real"),
}


def case(kind: str, rng: torch.Generator) -> tuple[heads.FromPyro, Tensor, Tensor]:
    model, tasks, target_kind = MODELS[kind]
    head = heads.FromPyro(model, D, tasks=tasks, target_kind=target_kind)
    y = normal(rng, N, tasks).exp()
    if target_kind == "class":
        y = torch.randint(3, (N, 1), generator=rng)
    elif target_kind == "binary":
        y = (y > 1).double()
    return head, normal(rng, N, D), y


@pytest.mark.parametrize("kind", MODELS)
def test_densities_are_pyros_own(kind: str, rng: torch.Generator) -> None:
    head, h, y = case(kind, rng)
    weight = normal(rng, 4, 1, head.weight_size)
    found = head.negative_log_probs(h, head.parse_targets(y, N), weight)
    taken = y[:, 0] if head.tasks == 1 else y
    drawn = head.latents(weight, h)
    with pytest.raises(ShapeError, match=r"pass draws \[S, P\] as draws\[:, None\]"):
        head.latents(weight[:, 0], h)
    for draw, (w, nll) in enumerate(zip(weight, found, strict=True)):
        for name, value in head.latents(w, h).items():
            torch.testing.assert_close(drawn[name][draw], value)
        model = poutine.condition(head.user_model, data=head.latents(w, h))
        trace = poutine.trace(model).get_trace(h, taken)
        trace.compute_log_prob()
        each = [trace.nodes[name]["log_prob"].reshape(N, -1) for name in head.layout.observed]
        torch.testing.assert_close(nll, -torch.cat(each, 1))
        # Latents are the model's: N(w; 0, I) is their density, times |dz/dw|.
        latents = torch.func.jacrev(
            lambda v: torch.cat([z.reshape(-1) for z in head.latents(v[None], h).values()])
        )(w[0])
        prior = sum(trace.nodes[name]["log_prob_sum"] for name in head.layout.latents)
        standard = torch.distributions.Normal(0.0, 1.0).log_prob(w).sum()
        torch.testing.assert_close(prior + torch.linalg.slogdet(latents).logabsdet, standard)


@pytest.mark.parametrize("kind", MODELS)
def test_sampled_gradients_are_those_of_the_density(kind: str, rng: torch.Generator) -> None:
    head, h, y = case(kind, rng)
    prior = priors.isotropic(head, 0.2)
    grad = gradients.distribution(
        head, prior, h, y, estimator=gradients.MonteCarlo(8, generator=rng)
    )
    found = grad.sample((3,), generator=torch.Generator().manual_seed(2))
    weight = prior.sample((3,), generator=torch.Generator().manual_seed(2))
    for s in range(3):
        leaf = h.clone().requires_grad_()
        loss = head.losses(leaf, head.parse_targets(y, N), weight[s])
        for t in range(head.tasks):
            (expected,) = torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)
            torch.testing.assert_close(found[s, t], expected)


@pytest.mark.parametrize("kind", MODELS)
def test_laplace_finds_the_mode_and_its_hessian(kind: str, rng: torch.Generator) -> None:
    head, h, y = case(kind, rng)
    prior = priors.isotropic(head, 1.0)
    found = inference.Laplace().infer(head, h, y, prior)
    assert found.info is not None
    assert found.info.converged is not None
    assert found.info.converged.all()
    assert (found.info.jitter == 0).all()

    def potential(w: Tensor) -> Tensor:
        return -inference.log_joint(head, w[None], h, head.parse_targets(y, N), prior).sum()

    slope = torch.func.grad(potential)(found.mean[0])
    assert slope.abs().max() < 1e-4
    hessian = torch.func.hessian(potential)(found.mean[0])
    torch.testing.assert_close(found.precision_matrix[0], hessian, rtol=1e-6, atol=1e-6)


def test_a_saddle_is_reported_not_hidden(rng: torch.Generator) -> None:
    """Y ~ N(w², 1) with y = 5 has a maximum of −log p at w = 0, and modes on either side."""

    def model(features: Tensor, targets: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", dist.Normal(w.square() + 0 * features[:, 0], 1.0), obs=targets)

    head = heads.FromPyro(model, 1)
    with torch.no_grad():
        head.weight.fill_(0.01)
    h, y = torch.zeros(4, 1, dtype=torch.float64), torch.full((4, 1), 5.0, dtype=torch.float64)
    prior = priors.isotropic(head, 1.0)
    taylor = inference.TaylorGGN().infer(head, h, y, prior)
    assert taylor.info is not None
    assert (taylor.info.jitter > 1).all()
    laplace = inference.Laplace().infer(head, h, y, prior)
    assert laplace.info is not None
    assert (laplace.info.jitter == 0).all()
    # w (4 (w² − 5) · 2 + 1) = 0
    torch.testing.assert_close(laplace.mean[0, 0].abs(), one(math.sqrt(5 - 1 / 8))[0])
    sums, again = (
        inference.TaylorGGN().statistics(head, inference.Storage(streaming=True)) for _ in range(2)
    )
    sums.add(h, head.parse_targets(y, len(h)))
    again.load_state_dict(sums.state_dict())
    for one_of in (sums, again):  # a Hessian still, once loaded
        torch.testing.assert_close(
            one_of.posterior(prior).precision_matrix, taylor.precision_matrix
        )


def test_missing_targets_do_not_matter_whatever_stands_for_them(rng: torch.Generator) -> None:
    """The density of a log-normal at the usual filler 0 is no number, nor is its gradient."""
    head = heads.FromPyro(mixed, D, tasks=2, missing="nan")
    h, y = normal(rng, N, D), normal(rng, N, 2).exp()
    y[::2, 0] = torch.nan
    prior = priors.isotropic(head, 1.0)
    found = inference.Laplace().infer(head, h, y, prior)
    assert found.mean.isfinite().all()
    keep = ~y[:, 0].isnan()

    def by_hand(w: Tensor) -> Tensor:
        parsed = head.parse_targets(torch.where(y.isnan(), 1.0, y), N)
        nll = head.negative_log_probs(h, parsed, w[None])
        return nll[keep, 0].sum() + nll[:, 1].sum() + 0.5 * w.square().sum()

    assert torch.func.grad(by_hand)(found.mean[0]).abs().max() < 1e-4
    grad = gradients.distribution(head, found, h, y, estimator=gradients.MonteCarlo(16))
    assert grad.mean.isfinite().all()
    assert (grad.mean[0, ~keep] == 0).all()


def test_other_schemes_take_it(rng: torch.Generator) -> None:
    head, plain = heads.FromPyro(linear, D), heads.Gaussian(D, noise_scale=0.5)
    h, y = normal(rng, N, D), normal(rng, N, 1)
    prior = posteriors.Gaussian(
        torch.ones(1, D, dtype=torch.float64), 0.25 * torch.eye(D, dtype=torch.float64)[None]
    )
    exact = inference.Conjugate().infer(plain, h, y, prior)
    std = exact.variance.sqrt()
    for scheme in (
        inference.Variational(steps=80),
        inference.NUTS(50, warmup=25, chains=1, generator=rng),
    ):
        found = scheme.infer(head, h, y, priors.isotropic(head, 1.0))
        assert ((1 + 2 * found.mean - exact.mean).abs() < 0.5 * std).all()
        torch.testing.assert_close(2 * found.variance.sqrt(), std, rtol=0.4, atol=0)


def test_the_model_of_the_head_and_its_draws(rng: torch.Generator) -> None:
    head, h, y = case("mixed", rng)
    mask = torch.rand(N, 2, generator=rng) > 0.4
    w = normal(rng, 1, head.weight_size)
    model = poutine.condition(head.model, data={"head.weight": w})
    found = poutine.trace(model).get_trace(h, (y, mask)).log_prob_sum()
    parsed = head.parse_targets((y, mask), N)
    prior = priors.isotropic(head, 1.0)
    torch.testing.assert_close(found, inference.log_joint(head, w, h, parsed, prior).sum())
    draws = {"head.weight": normal(rng, 6, 1, 1, head.weight_size)}
    out = pyro.infer.Predictive(head.model, draws, parallel=True)(h)
    assert out["head.targets"].shape == (6, N, 2)
    assert head.model(h).shape == (N, 2)


def test_the_model_sees_no_handler_plate_or_store_from_outside(rng: torch.Generator) -> None:
    head, h, y = case("two tasks", rng)
    parsed = head.parse_targets(y, N)
    expected = head.negative_log_probs(h, parsed)
    with (
        poutine.trace() as outer,
        pyro.plate("examples", 5),
        poutine.scale(scale=3.0),
        poutine.seed(rng_seed=0),
    ):
        found = head.negative_log_probs(h, parsed)
    assert torch.equal(found, expected)
    assert set(outer.trace.nodes) <= {"examples"}
    settings, state = pyro.settings.get(), torch.random.get_rng_state()
    head.predictive(h, priors.isotropic(head, 1.0), samples=4)
    assert pyro.settings.get() == settings
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("kind", MODELS)
def test_predictions(kind: str, rng: torch.Generator) -> None:
    head, h, y = case(kind, rng)
    prior = priors.isotropic(head, 0.1)
    weight = prior.sample((50,), generator=torch.Generator().manual_seed(0))
    nll = head.negative_log_probs(h, head.parse_targets(y, N), weight)
    p = head.predictive(h, prior, samples=50)
    torch.testing.assert_close(p.log_prob(y), (-nll).logsumexp(0) - math.log(50))
    if kind == "classes":
        assert head(h).shape == (N, 3)
        return
    torch.testing.assert_close(p.mean, head(h, weight).mean(0))
    if kind == "binary":
        torch.testing.assert_close(p.probs, p.mean)
        torch.testing.assert_close(p.standard_error, head(h, weight).std(0) / math.sqrt(50))
    drawn = p.sample((3,))
    assert drawn.shape == (3, N, head.tasks)


def test_predictions_are_made_of_all_stored_draws(rng: torch.Generator) -> None:
    head, h, _ = case("classes", rng)
    stored = normal(rng, 200, 1, head.weight_size)
    found = head.predictive(h, posteriors.Empirical(stored))
    torch.testing.assert_close(found.probs[:, 0], head(h, stored).softmax(-1).mean(0))
    with pytest.warns(RuntimeWarning, match="sampling error"):
        head.predictive(h, posteriors.Empirical(stored), tolerance=1e-9)


def test_classes_beside_numbers_are_one_of_two_tasks(rng: torch.Generator) -> None:
    """Their mixture is over both, not a Categorical of the first."""

    def model(features: Tensor, targets: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D, 3), 1.0).to_event(2))
        label, number = (None, None) if targets is None else targets.unbind(-1)
        with pyro.plate("examples", len(features)):
            pyro.sample("label", dist.Categorical(logits=features @ w), obs=label)
            pyro.sample("number", dist.Normal(features @ w[:, 0], 0.5), obs=number)

    head, h = heads.FromPyro(model, D, tasks=2), normal(rng, N, D)
    y = torch.stack([torch.randint(3, (N,), generator=rng).double(), normal(rng, N)], -1)
    prior = priors.isotropic(head, 0.1)
    weight = prior.sample((50,), generator=torch.Generator().manual_seed(0))
    nll = head.negative_log_probs(h, head.parse_targets(y, N), weight)
    p = head.predictive(h, prior, samples=50)
    torch.testing.assert_close(p.log_prob(y), (-nll).logsumexp(0) - math.log(50))


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_examples_that_the_likelihood_masks_are_predicted(kind, rng: torch.Generator) -> None:
    """A mask leaves them out of the likelihood; what is said of them is no density of 1."""

    def model(features: Tensor, targets: Tensor | None = None, masked: bool = True) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        f = features @ w
        law: Any = dist.Bernoulli(logits=f)
        if kind == "class":
            law = dist.Categorical(logits=torch.stack([f, -f], -1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", law.mask(features[:, 0] > 0) if masked else law, obs=targets)

    h = normal(rng, N, D)
    head, plain = (
        heads.FromPyro(partial(model, masked=masked), D, target_kind=kind)
        for masked in (True, False)
    )
    prior = priors.isotropic(head, 1.0)
    laws = [each.predictive(h, prior, samples=20) for each in (head, plain)]
    torch.testing.assert_close(laws[0].probs, laws[1].probs)
    y = torch.ones(N, 1, dtype=torch.long if kind == "class" else torch.double)
    nll = head.negative_log_probs(h, head.parse_targets(y, N))
    assert (nll[h[:, 0] <= 0] == 0).all()


@pytest.mark.parametrize("kind", MODELS)
def test_uncertainty_in_two_parts(kind: str, rng: torch.Generator) -> None:
    head, h, _ = case(kind, rng)
    prior = priors.isotropic(head, 0.1)
    found = predictive.uncertainty(head, prior, h, samples=50)
    p = head.predictive(h, prior, samples=50)
    if kind == "classes":
        torch.testing.assert_close(found.total, p.entropy())
    elif kind == "binary":
        entropy = torch.distributions.Bernoulli(p.mean).entropy()
        torch.testing.assert_close(found.total, entropy)
    else:
        torch.testing.assert_close(found.total, p.variance)
    assert (found.epistemic > 0).all()
    assert (found.aleatoric > 0).all()


def test_copies_and_states(rng: torch.Generator) -> None:
    head, h, _ = case("mixed", rng)
    other, _, _ = case("mixed", rng)
    assert not torch.equal(head(h), other(h))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(h), other(h))
    assert torch.equal(copy.deepcopy(head)(h), head(h))
