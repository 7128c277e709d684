"""Data that break inference elsewhere: everything stays finite, with every scheme."""

from __future__ import annotations

import pytest
import torch
from problems import F64, Linear, normal, seed

from bayesagg_pyro import errors, gradients, heads, inference, posteriors, priors

SCHEMES = [
    inference.Variational(steps=6, particles=2),
    inference.Variational("low_rank", steps=6, particles=2),
    inference.Variational("diagonal", steps=6, particles=2),
    inference.HMC(5, warmup=3, chains=1),
    inference.NUTS(4, warmup=2, chains=1, max_tree_depth=3),
    inference.Ensemble(4),
    inference.Delta(),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
def test_degenerate_data(rng, scheme, kind) -> None:
    """N < D, one class only, a task without labels, weights of 0, a constant feature, float32."""
    head = {
        "gaussian": heads.Gaussian(4, 2),
        "bernoulli": heads.Bernoulli(4, 2),
        "categorical": heads.Categorical(4, 3, tasks=2),
    }[kind]
    h = normal(rng, 3, 4).float()
    h[:, 1] = 0
    mask = torch.tensor([[True, False]]).expand(3, 2)
    weight = torch.tensor([1.0, 0.0, 2.5])
    y = torch.ones(3, 2, dtype=torch.long if kind == "categorical" else torch.float32)
    prior = priors.isotropic(head, 1.0)
    settings = {} if isinstance(scheme, inference.Delta) else {"generator": seed()}
    found = scheme.infer(head, h, (y, mask, weight), prior, **settings)
    assert found.mean.isfinite().all()
    assert found.variance.isfinite().all()
    assert found.outputs_per_task == head.outputs_per_task
    assert found.mean.dtype == F64
    estimator = gradients.MonteCarlo(4, generator=seed())
    grad = gradients.distribution(head, found, h, (y, mask, weight), estimator=estimator)
    assert grad.mean.isfinite().all()
    assert grad.variance.isfinite().all()
    assert grad.mean.dtype == F64  # the examples are weighted


@pytest.mark.parametrize("scheme", SCHEMES[:-1], ids=repr)
def test_a_posterior_goes_through_its_state(rng, scheme) -> None:
    p = Linear(rng, d=2)
    found = scheme.infer(*p.arguments, generator=seed())
    again = posteriors.Posterior.from_state_dict(found.state_dict())
    assert type(again) is type(found)
    for name, tensor in found.tensors().items():
        assert torch.equal(again.tensors()[name], tensor)
    assert getattr(again, "chains", 1) == getattr(found, "chains", 1)


def test_bad_input_is_refused(rng) -> None:
    p = Linear(rng)
    bad = p.features.clone()
    bad[0, 0] = torch.nan
    for scheme in SCHEMES[:-1]:
        with pytest.raises(errors.NonFiniteError):
            scheme.infer(p.head, bad, p.targets, p.prior)
        with pytest.raises(errors.ShapeError):
            scheme.infer(
                p.head,
                p.features,
                p.targets,
                p.prior,
                start=priors.isotropic(heads.Gaussian(9), 1.0),
            )


def test_a_low_rank_gaussian_is_the_dense_one(rng) -> None:
    """Every operation against the dense posterior of the same moments."""
    mean, factor = normal(rng, 2, 5), normal(rng, 2, 5, 2)
    diagonal = normal(rng, 2, 5).exp()
    low = posteriors.LowRankGaussian(mean, factor, diagonal)
    covariance = torch.diag_embed(diagonal) + factor @ factor.mT
    dense = posteriors.Gaussian(mean, torch.linalg.inv(covariance))
    v, h = normal(rng, 2, 5), normal(rng, 7, 5)
    close = torch.testing.assert_close
    close(low.covariance_matrix, covariance)
    close(low.variance, dense.variance)
    close(low.precision_times(v), dense.precision_times(v))
    close(low.solve(v), dense.solve(v))
    close(low.log_prob(v), dense.log_prob(v))
    close(low.project(h).cross, dense.project(h).cross)
    close(low.project(h).variance, dense.project(h).variance)
    close(low.with_mean(v).mean, v)
    exact = torch.linalg.cond(covariance)
    assert (low.info.condition <= exact * (1 + 1e-9)).all()
    draws = low.sample((60_000,), generator=seed())
    close(torch.cov(draws[:, 1].T), covariance[1], rtol=0.1, atol=0.1)
    head = heads.Gaussian(5, 2)
    y = normal(rng, 7, 2)
    for moment in ("mean", "variance", "covariance_matrix"):
        one, other = (getattr(gradients.distribution(head, q, h, y), moment) for q in (low, dense))
        close(one, other)
    with pytest.raises(errors.ShapeError):
        posteriors.LowRankGaussian(mean, factor[:1], diagonal)
    with pytest.raises(errors.NumericalError):
        posteriors.LowRankGaussian(mean, factor, -diagonal)


def test_a_head_without_second_order_expansion(rng) -> None:
    """A likelihood of the user's own: modes by automatic derivatives, then the same schemes."""

    class Cauchy(heads.Head):
        def likelihood(self, outputs):
            return torch.distributions.Cauchy(outputs, 0.5)

    head = Cauchy(2).double()
    h = normal(rng, 30, 2)
    y = h @ torch.tensor([[1.0], [-2.0]], dtype=F64) + 0.1 * normal(rng, 30, 1)
    y[0] = 100.0  # an outlier that a square loss would follow
    prior = priors.isotropic(head, 4.0)
    for scheme in (
        inference.Variational(steps=30),
        inference.Ensemble(16),
        inference.HMC(40, warmup=20, chains=1),
    ):
        found = scheme.infer(head, h, y, prior, generator=seed())
        torch.testing.assert_close(
            found.mean, torch.tensor([[1.0, -2.0]], dtype=F64), atol=0.4, rtol=0
        )
