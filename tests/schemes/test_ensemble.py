"""Ensembles: exact draws in the linear-Gaussian case, modes of perturbed problems elsewhere."""

from __future__ import annotations

import pytest
import torch
from problems import F64, Linear, distance, normal, seed

from bayesagg_pyro import errors, heads, inference, priors
from bayesagg_pyro._optimise import maximise


def test_members_are_exact_posterior_draws_for_gaussian_heads(rng) -> None:
    """Also with holes and weights in the targets: 4000 members, errors of that size."""
    p = Linear(rng)
    found = inference.Ensemble(4000, generator=seed()).infer(*p.arguments)
    mean, covariance = p.far(found)
    assert mean < 4 / 4000**0.5
    assert covariance < 4 * (4 / 4000) ** 0.5
    whitened = torch.einsum("stp,tpk->stk", found.samples - p.exact.mean, p.exact.precision_tril)
    kurtosis = (whitened / whitened.std(0)).pow(4).mean(0)
    assert (kurtosis - 3).abs().max() < 0.5
    assert found.info.converged.all()


def test_every_task_has_its_own_dense_prior(rng) -> None:
    """As every prior is that data made."""
    p = Linear(rng)
    root = normal(rng, 2, 4, 4)
    prior = priors.dense(p.head, root @ root.mT + 0.2 * torch.eye(4, dtype=F64), mean=0.5)
    given = p.head, p.features, p.targets, prior
    found = inference.Ensemble(4000, generator=seed()).infer(*given)
    mean, covariance = distance(found, inference.Conjugate().infer(*given))
    assert mean < 4 / 4000**0.5
    assert covariance < 4 * (4 / 4000) ** 0.5


def test_fixed_data_are_too_narrow(rng) -> None:
    p = Linear(rng)
    found = inference.Ensemble(2000, data="fixed", generator=seed()).infer(*p.arguments)
    assert (found.variance < 0.8 * p.exact.variance).all()


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_every_member_is_a_mode(rng, kind) -> None:
    """At the returned weights the gradient of the perturbed problem vanishes: bootstrap weights."""
    head = heads.Bernoulli(2, 2).double() if kind == "binary" else heads.Categorical(2, 3).double()
    h = normal(rng, 12, 2)
    y = torch.randint(0, 2 if kind == "binary" else 3, (12, head.tasks), generator=rng)
    y = y.double() if kind == "binary" else y
    prior = priors.isotropic(head, 2.0)
    found = inference.Ensemble(5, generator=seed()).infer(head, h, y, prior)
    draws = seed()
    anchors = prior.sample((5,), generator=draws)
    weight = torch.empty(5, 12, head.tasks, dtype=F64).exponential_(generator=draws)
    w = found.samples.clone().requires_grad_()
    nll = (head.negative_log_prob(head(h, w), y) * weight).sum()
    (slope,) = torch.autograd.grad(nll + (w - anchors).square().sum() / 4, w)
    assert slope.abs().max() < 1e-3
    assert (found.samples[0] - found.samples[1]).abs().max() > 0.1


def test_weights_of_a_bootstrap_count_examples(rng) -> None:
    """Weight 2, every example twice and temperature 1/2 are one law; weight 1 is no weight."""
    head, n = heads.Bernoulli(2).double(), 300
    h = normal(rng, n, 2)
    y = (torch.rand(n, 1, generator=rng) < h[:, :1].sigmoid()).double()
    prior = priors.isotropic(head, 100.0)

    def spread(h: torch.Tensor, y: object) -> torch.Tensor:
        found = inference.Ensemble(2000, generator=seed()).infer(head, h, y, prior)
        return found.variance.sqrt()

    def weighted(weight: float) -> torch.Tensor:
        return spread(h, (y, None, torch.full((n,), weight)))

    head.pos_weight = torch.full((1,), 2.0, dtype=F64)
    heavier = spread(h, (y, None, 2.0 - y))  # 2 for each label
    head.pos_weight = None
    assert torch.allclose(heavier, weighted(2.0), rtol=1e-6)
    once, twice = spread(h, y), spread(h.repeat(2, 1), y.repeat(2, 1))
    assert (weighted(2.0) / twice - 1).abs().max() < 4 / 2000**0.5
    assert (weighted(0.25) / once - 2).abs().max() < 0.2  # Laplace's ratio, of a wide posterior
    assert torch.equal(weighted(1.0), once)
    for temperature in (0.5, 4.0):
        policy = priors.FullData(100.0, temperature=temperature)
        policy = policy.start(head, inference.Ensemble(2000, generator=seed()))
        policy.collect(h, head.parse_targets(y, n))
        policy.update()
        assert torch.equal(policy.prior.variance.sqrt(), weighted(1 / temperature))


def test_modes_of_a_density_that_is_not_log_concave() -> None:
    """Student's t: Newton steps on |curvature| climb from the far tail, where it is convex."""
    centre = torch.tensor([[0.0, 0.0], [30.0, -7.0]], dtype=F64)

    def log_density(w: torch.Tensor) -> torch.Tensor:
        return -2 * (1 + (w - centre).square()).log().sum(-1) - 1e-4 * w.square().sum(-1)

    mode, precision, decrement = maximise(log_density, torch.full((2, 2), 4.0, dtype=F64))
    assert (mode - centre).abs().max() < 1e-2
    assert (torch.linalg.eigvalsh(precision) > 0).all()
    assert (decrement < 1e-6).all()


def test_bad_settings(rng) -> None:
    for wrong in ({"members": 1}, {"tolerance": 0.0}, {"max_steps": 0}, {"data": "no"}):
        with pytest.raises(errors.SettingError):
            inference.Ensemble(**wrong)
    head = heads.Bernoulli(2).double()
    with pytest.raises(errors.SettingError, match="bootstrap"):
        inference.Ensemble(data="noise").infer(
            head, normal(rng, 3, 2), torch.ones(3), priors.isotropic(head, 1.0)
        )
