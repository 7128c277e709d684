"""Classification heads as Pyro models, and their predictive distributions."""

from __future__ import annotations

import pyro
import pytest
import torch
from dense import COMPLICATIONS, KINDS, close, gaussian, normal, prior, task
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive
from trapezoid import MASS, Z

from bayesagg_pyro import heads, inference, posteriors, priors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", COMPLICATIONS, ids=str)
@pytest.mark.parametrize("tasks", [1, 3])
def test_the_trace_is_prior_plus_weighted_likelihood(rng, kind, extra, tasks) -> None:
    """Class, positive and example weights and holes count in the model as they do in inference."""
    t = task(rng, kind, tasks=tasks, **extra)
    p = prior(rng, t.head)
    weight = normal(rng, tasks, t.head.weight_size)
    model = poutine.condition(t.head.model, data={"head.weight": weight})
    given = (t.targets, t.mask, t.weight) if t.weight is not None else t.given
    trace = poutine.trace(model).get_trace(t.features, given, prior=p)
    mvn = torch.distributions.MultivariateNormal(p.mean, precision_matrix=p.precision_matrix)
    expected = mvn.log_prob(weight).sum() - sum(t.nll(weight[k], k) for k in range(tasks))
    close(trace.log_prob_sum(), expected)
    zero = torch.zeros(14, tasks).double()
    trace = poutine.trace(model).get_trace(t.features, (t.targets, None, zero), prior=p)
    close(trace.log_prob_sum(), mvn.log_prob(weight).sum())  # a weight of 0 is no data


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_predictive_draws(rng, kind, tasks, parallel) -> None:
    """Frequencies of the labels drawn are the probabilities of the weights given."""
    t = task(rng, kind, n=5, tasks=tasks)
    draws = 3000 if parallel else 200
    weight = normal(rng, tasks, t.head.weight_size)
    samples = {"head.weight": weight.expand(draws, -1, -1)}
    got = Predictive(t.head.model, samples, parallel=parallel)(t.features)["head.targets"]
    got = got.reshape(draws, 5, tasks)
    outputs = t.head(t.features, weight)
    if kind == "binary":
        p, seen = outputs.sigmoid()[..., None], got[..., None]
    else:
        p = t.head.logits(outputs).softmax(-1)
        seen = torch.nn.functional.one_hot(got, 3).double()
    error = (p * (1 - p) / draws).sqrt() + 1 / draws
    assert ((seen.mean(0) - p).abs() < 5 * error).all()


@pytest.mark.parametrize("parallel", [False, True])
def test_prior_predictive_of_classes(parallel) -> None:
    """By symmetry every class has probability 1/C under the default prior."""
    head = heads.Categorical(2, 4, tasks=3, prior_variance=2.0)
    h = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    got = Predictive(head.model, num_samples=200, parallel=parallel)(h)
    assert got["head.weight"].numel() == 200 * 3 * 12
    labels = got["head.targets"].reshape(200, 2, 3)
    share = torch.nn.functional.one_hot(labels, 4).double().mean(0)
    assert ((share - 0.25).abs() < 5 * (0.25 * 0.75 / 200) ** 0.5).all()


def test_nuts_agrees_with_laplace_where_laplace_is_good(rng) -> None:
    """Loosely: many examples, a near Gaussian posterior, few draws."""
    head = heads.Bernoulli(2, 1).double()
    h = normal(rng, 150, 2)
    y = (torch.rand(150, generator=rng).double() < (h @ normal(rng, 2)).sigmoid()).double()
    p = priors.isotropic(head, 1.0)
    laplace = inference.Laplace().infer(head, h, y, p)
    pyro.set_rng_seed(1)
    mcmc = MCMC(NUTS(head.model), num_samples=120, warmup_steps=50, disable_progbar=True)
    mcmc.run(h, y, prior=p)
    draws = mcmc.get_samples()["head.weight"]
    assert draws.shape == (120, 1, 3)
    scale = laplace.variance.sqrt()
    assert ((draws.mean(0) - laplace.mean).abs() < 0.5 * scale).all()
    assert ((draws.std(0) / scale - 1).abs() < 0.35).all()


def test_two_heads_live_in_one_trace(rng) -> None:
    a = heads.Bernoulli(3, 2, name="a").double()
    b = heads.Categorical(3, 4, tasks=2, name="b").double()
    h = normal(rng, 5, 3)

    def both(x, ya=None, yb=None):
        return a.model(x, ya), b.model(x, yb)

    trace = poutine.trace(both).get_trace(h)
    shapes = {k: tuple(trace.nodes[k]["value"].shape) for k in trace.stochastic_nodes if "." in k}
    assert shapes["a.weight"] == (2, 4)
    assert shapes["b.weight"] == (2, 16)
    assert shapes["a.targets"] == shapes["b.targets"] == (5, 2)
    draws = Predictive(both, num_samples=7, parallel=True)(h)
    assert draws["a.targets"].shape == draws["b.targets"].shape == (7, 5, 2)
    ya, yb = draws["a.targets"][0], draws["b.targets"][0]
    joint = poutine.trace(both).get_trace(h, ya, yb).log_prob_sum()
    assert joint.isfinite()


# -- predictive ------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [1e-3, 0.5, 3.0, 30.0])
def test_bernoulli_predictive_is_the_integral(rng, std) -> None:
    """E sigmoid(u) to 1e-4, the tolerance it states, for both forms of covariance."""
    head = heads.Bernoulli(3, 2).double()
    root = normal(rng, 2, 4, 4)
    s, m = std**2 * (root @ root.mT / 4 + 0.1 * torch.eye(4)), 3 * normal(rng, 2, 4)
    h = normal(rng, 5, 3)
    design = torch.cat([h, torch.ones(5, 1).double()], 1)
    diagonal = posteriors.DiagonalGaussian(m, 1 / s.diagonal(dim1=-2, dim2=-1))
    for p, full in ((gaussian(m, s), s), (diagonal, torch.diag_embed(diagonal.variance))):
        found = head.predictive(h, p)
        assert found.batch_shape == (5, 2)
        for b in range(5):
            for t in range(2):
                u = design[b] @ m[t] + (design[b] @ full[t] @ design[b]).sqrt() * Z
                assert abs(found.probs[b, t] - MASS @ u.sigmoid()) < 1e-4


def test_categorical_predictive_is_the_mean_softmax(rng) -> None:
    """Of 512 draws, the same in each call; an empirical posterior serves too."""
    head = heads.Categorical(3, 3, tasks=2).double()
    p = prior(rng, head)
    h = normal(rng, 5, 3)
    found = head.predictive(h, p)
    assert found.batch_shape == (5, 2)
    assert torch.equal(found.probs, head.predictive(h, p).probs)
    draws = p.sample((20_000,), generator=rng)
    probabilities = head.logits(head(h, draws)).softmax(-1)
    error = probabilities.std(0) / 512**0.5
    assert ((found.probs - probabilities.mean(0)).abs() < 5 * error).all()
    empirical = posteriors.Empirical(draws[:50])
    found = head.predictive(h, empirical)
    error = probabilities.std(0) / 50**0.5
    assert ((found.probs - probabilities.mean(0)).abs() < 6 * error).all()
    certain = heads.Bernoulli(3).predictive(h, posteriors.Empirical(torch.zeros(2, 1, 4)))
    close(certain.probs, torch.full((5, 1), 0.5).double())
