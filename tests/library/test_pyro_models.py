"""Every head is a Pyro model: Pyro's own tools run on it and find the analytic posterior."""

from __future__ import annotations

import pyro
import pytest
import torch
from oracles import case, close
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal

from bayesagg_pyro import heads, inference, posteriors


def test_the_trace_is_prior_plus_likelihood(rng) -> None:
    c = case(rng, noise=[0.3, 1.0, 2.0], bias=True)
    weight = torch.randn(3, 5, generator=rng, dtype=torch.float64)
    model = poutine.condition(c.head.model, data={"head.weight": weight})
    trace = poutine.trace(model).get_trace(c.features, c.targets, prior=c.prior)
    normal = torch.distributions.Normal(
        c.design @ weight.T, torch.tensor(c.noise, dtype=torch.float64)
    )
    mvn = torch.distributions.MultivariateNormal(
        c.prior.mean, precision_matrix=c.prior.precision_matrix
    )
    expected = mvn.log_prob(weight).sum() + normal.log_prob(c.targets).sum()
    close(trace.log_prob_sum(), expected)


def test_default_prior_is_isotropic(rng) -> None:
    head = heads.Gaussian(3, tasks=2, prior_variance=0.25)
    trace = poutine.trace(head.model).get_trace(torch.zeros(1, 3))
    weight = trace.nodes["head.weight"]["value"]
    normal = torch.distributions.Normal(0.0, 0.5)
    close(trace.nodes["head.weight"]["fn"].log_prob(weight), normal.log_prob(weight).sum(-1), 1e-5)


def test_missing_targets_do_not_count(rng) -> None:
    c = case(rng)
    mask = torch.rand(12, 3, generator=rng) < 0.5
    weight = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    model = poutine.condition(c.head.model, data={"head.weight": weight})
    poisoned = c.targets.where(mask, torch.tensor(float("nan")).double())
    trace = poutine.trace(model).get_trace(c.features, (poisoned, mask), prior=c.prior)
    trace.compute_log_prob()
    got = trace.nodes["head.targets"]["log_prob_sum"]
    normal = torch.distributions.Normal(c.design @ weight.T, 1.0)
    close(got, normal.log_prob(c.targets)[mask].sum())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_draws_have_the_analytic_moments(rng, parallel, bias) -> None:
    c = case(rng, n=4, noise=[0.3, 1.0, 2.0], bias=bias)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    draws = 4000 if parallel else 400
    samples = {"head.weight": p.sample((draws,), generator=rng)}
    predictive = Predictive(c.head.model, samples, parallel=parallel)
    got = predictive(c.features)["head.targets"]
    assert got.shape[-2:] == (4, 3)
    got = got.reshape(draws, 4, 3)
    expected = c.head.predictive(c.features, p)
    error = expected.variance.sqrt() / draws**0.5
    assert ((got.mean(0) - expected.mean).abs() < 5 * error).all()
    error = expected.variance * (2 / draws) ** 0.5
    assert ((got.var(0) - expected.variance).abs() < 5 * error).all()


@pytest.mark.parametrize("parallel", [False, True])
def test_prior_predictive(parallel) -> None:
    head = heads.Gaussian(2, tasks=3, prior_variance=0.5, noise_scale=0.1)
    features = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    got = Predictive(head.model, num_samples=600, parallel=parallel)(features)["head.targets"]
    got = got.reshape(600, 2, 3)
    expected = 0.5 * features.square().sum(1) + 0.01
    assert ((got.var(0) / expected[:, None] - 1).abs() < 5 * (2 / 600) ** 0.5).all()


def test_svi_finds_the_posterior(rng) -> None:
    c = case(rng, n=30, d=3, tasks=2, dtype=torch.float32)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    guide = AutoMultivariateNormal(c.head.model, init_scale=0.2)
    schedule = pyro.optim.ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.985}
    )
    objective = Trace_ELBO(num_particles=16, vectorize_particles=True)
    svi = SVI(c.head.model, guide, schedule, objective)
    for _ in range(300):
        svi.step(c.features, c.targets, prior=c.prior)
        schedule.step()
    fitted = guide.get_posterior()
    scale = p.variance.sqrt().flatten()
    c.features, c.targets = c.features.double(), c.targets.double()
    assert ((fitted.mean - p.mean.flatten()).abs() < 0.15 * scale).all()
    joint = torch.block_diag(*p.covariance_matrix.expand(2, 3, 3))
    error = (fitted.covariance_matrix - joint) / torch.outer(scale, scale)
    assert error.abs().max() < 0.2
    # and its evidence bound is the evidence: exact inference is within this guide's reach
    elbo = -Trace_ELBO(num_particles=500, vectorize_particles=True).loss(
        c.head.model, guide, c.features.float(), c.targets.float(), prior=c.prior
    )
    marginal = 0.0
    for t in range(2):
        s = c.features @ torch.linalg.inv(c.prior.precision_matrix[t]) @ c.features.T
        marginal += torch.distributions.MultivariateNormal(
            c.features @ c.prior.mean[t], s + torch.eye(30).double()
        ).log_prob(c.targets[:, t])
    assert abs(elbo - marginal.item()) < 0.1


def test_nuts_finds_the_posterior(rng) -> None:
    c = case(rng, n=20, d=3, tasks=1)
    p = inference.Conjugate().infer(c.head, c.features, c.targets, c.prior)
    pyro.set_rng_seed(1)
    mcmc = MCMC(NUTS(c.head.model), num_samples=150, warmup_steps=60, disable_progbar=True)
    mcmc.run(c.features, c.targets, prior=c.prior)
    draws = mcmc.get_samples()["head.weight"]
    assert draws.shape == (150, 1, 3)
    scale = p.variance.sqrt()
    assert ((draws.mean(0) - p.mean).abs() < 5 * scale / 75**0.5).all()
    assert ((draws.var(0) / p.variance - 1).abs() < 0.5).all()
    empirical = posteriors.Empirical(draws)  # and goes on into the sampled path
    close(empirical.mean, draws.mean(0))


def test_two_heads_live_in_one_trace(rng) -> None:
    a, b = heads.Gaussian(3, tasks=2, name="a"), heads.Gaussian(3, tasks=4, name="b")
    features = torch.randn(5, 3, generator=rng)

    def both(x, ya=None, yb=None):
        return a.model(x, ya), b.model(x, yb)

    trace = poutine.trace(both).get_trace(features)
    sites = {name: trace.nodes[name]["value"].shape for name in trace.stochastic_nodes}
    sites = {name: tuple(shape) for name, shape in sites.items() if "." in name}
    assert sites["a.weight"] == (2, 3)
    assert sites["b.weight"] == (4, 3)
    assert sites["a.targets"] == (5, 2)
    assert sites["b.targets"] == (5, 4)
    draws = Predictive(both, num_samples=7, parallel=True)(features)
    assert draws["a.targets"].shape == (7, 5, 2)
    assert draws["b.targets"].shape == (7, 5, 4)


def test_library_calls_leave_pyros_store_and_torchs_generator_alone(rng) -> None:
    """With a generator given, nothing global moves."""
    import bayesagg_pyro as ba
    from bayesagg_pyro import gradients

    pyro.param("mine", torch.tensor(1.0))
    before = dict(pyro.get_param_store().items())
    mtl = ba.BayesAgg(
        {"a": heads.Gaussian(3, tasks=2)},
        estimator=gradients.MonteCarlo(8),
        generator=rng,
    )
    backbone = torch.nn.Linear(3, 3)
    x, y = torch.randn(6, 3, generator=rng), torch.randn(6, 2, generator=rng)
    state = torch.get_rng_state()
    mtl.backward(backbone(x), {"a": y})
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(backbone(x), {"a": y})
    mtl.predictive(backbone(x))["a"].mean.sum()
    mtl.priors()["a"].sample((3,), generator=rng)
    assert torch.equal(torch.get_rng_state(), state)
    after = dict(pyro.get_param_store().items())
    assert after.keys() == before.keys() == {"mine"}


def test_drawing_from_the_model_needs_no_parameter_store(rng) -> None:
    """The head's point estimate is a module parameter, not a Pyro one."""
    head = heads.Gaussian(3)
    head.model(torch.zeros(2, 3))
    assert list(pyro.get_param_store().keys()) == []
