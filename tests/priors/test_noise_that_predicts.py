"""Where no noise is given: 1 weighs, and predictions take what cross-validation finds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads, inference, predictive, priors
from bayesagg_pyro.posteriors import GaussianFamily


def linear(rng: torch.Generator, examples: int, noise: float) -> tuple[Tensor, Tensor]:
    features = torch.randn(examples, 6, generator=rng, dtype=torch.float64)
    weight = torch.randn(6, 2, generator=rng, dtype=torch.float64)
    drawn = torch.randn(examples, 2, generator=rng, dtype=torch.float64)
    return features, features @ weight + noise * drawn


def posterior_of(head, features, targets, prior, temperature=1.0) -> GaussianFamily:
    statistics = inference.Conjugate().statistics(head, inference.Storage())
    statistics.add(features, head.parse_targets(targets, len(features)))
    return statistics.scaled(1 / temperature).posterior(prior)


@pytest.mark.parametrize("mean", [0.0, 0.7])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("examples", "temperature"), [(5, 1.0), (40, 1.0), (40, 0.3), (40, 4.0)])
def test_it_is_that_of_generalised_cross_validation_under_a_prior(
    rng, mean, missing, examples, temperature
) -> None:
    features, targets = linear(rng, examples, 0.3)
    head = heads.Gaussian(6, tasks=2).double()
    prior = priors.isotropic(head, 0.5)
    prior = type(prior)(torch.full_like(prior.mean, mean), prior.precision)
    mask = torch.rand(examples, 2, generator=rng) < 0.8 if missing else torch.ones(examples, 2) > 0
    given = (targets, mask) if missing else targets
    found = posterior_of(head, features, given, prior, temperature)
    for task in range(2):
        h, y = features[mask[:, task]], targets[mask[:, task], task]
        ridge = 2 * temperature * torch.eye(6, dtype=h.dtype)
        hat = h @ torch.linalg.solve(h.T @ h + ridge, h.T)
        residual = (torch.eye(len(h), dtype=h.dtype) - hat) @ (y - mean * h.sum(1))
        left_out = residual.square().mean() / (1 - hat.diagonal().mean()).square()
        width = (h * (found.covariance_matrix.expand(2, -1, -1)[task] @ h.T).T).sum(1)
        variance = float(left_out / (1 + width).mean())
        # The mode of −n (log τ + ½ s²/τ²) − ½ log²τ, n residuals being left beside the weights.
        count = float(len(h) - hat.diagonal().sum())
        log_scale = found.info.noise_scale[task].log().item()
        slope = count * (variance * math.exp(-2 * log_scale) - 1) - log_scale
        assert slope == pytest.approx(0, abs=1e-8 * count)
        assert examples == 5 or found.info.noise_scale[task] == pytest.approx(
            variance**0.5, rel=0.05
        )


def test_one_label_says_little_of_the_noise(rng) -> None:
    head = heads.Gaussian(6, tasks=1).double()
    for label in (1e-3, 0.0):
        found = posterior_of(
            head,
            1e-3 * torch.ones(1, 6, dtype=torch.float64),
            torch.tensor([[label]], dtype=torch.float64),
            priors.isotropic(head, 1.0),
        )
        assert 0.3 < found.info.noise_scale <= 1  # at least e⁻¹, though the residual is 1e-3
    features, targets = linear(rng, 500, 0.3)
    both = heads.Gaussian(6, tasks=2).double()
    posterior = posterior_of(both, features, targets, priors.isotropic(both, 1.0))
    one = both.parse_targets(both(features[:1], posterior.mean).detach(), 1)
    scale = predictive.calibration(both, posterior, [(features[:1], one)])
    assert (scale > 0.3 * posterior.info.noise_scale).all()  # predicted exactly


def test_predictions_are_those_of_a_head_whose_noise_is_known(rng) -> None:
    features, targets = linear(rng, 500, 0.25)
    unknown = heads.Gaussian(6, tasks=2).double()
    found = posterior_of(unknown, features, targets, priors.isotropic(unknown, 4.0))
    scale = found.info.noise_scale
    known = heads.Gaussian(6, tasks=2, noise_scale=scale).double()
    prior = priors.isotropic(known, [4.0 * float(s) ** 2 for s in scale])
    exact = inference.Conjugate().infer(known, features, targets, prior)
    new = torch.randn(9, 6, generator=rng, dtype=torch.float64)
    got, expected = unknown.predictive(new, found), known.predictive(new, exact)
    torch.testing.assert_close(got.mean, expected.mean)
    torch.testing.assert_close(got.stddev, expected.stddev)
    parts, wanted = (
        predictive.uncertainty(head, q, new) for head, q in ((unknown, found), (known, exact))
    )
    torch.testing.assert_close(parts.epistemic, wanted.epistemic)
    torch.testing.assert_close(parts.aleatoric, wanted.aleatoric)


@pytest.mark.parametrize("calibrated", [False, True])
def test_every_method_predicts_with_it(rng, calibrated) -> None:
    """N(hᵀm, τ² (1 + hᵀSh)), to the error of 20,000 draws."""
    features, targets = linear(rng, 20, 0.25)
    head = heads.Gaussian(6, tasks=2).double()
    found = posterior_of(head, features, targets, priors.isotropic(head, 4.0))
    if calibrated:
        found = predictive.calibrated(head, found, torch.tensor([3.0, 0.1], dtype=torch.float64))
    new = torch.randn(9, 6, generator=rng, dtype=torch.float64)
    mean = new @ found.mean.mT
    covariance = torch.linalg.inv(found.precision_matrix).expand(2, -1, -1)
    spread = torch.einsum("bp,tpq,bq->bt", new, covariance, new)
    variance = found.info.noise_scale.square() * (1 + spread)
    wanted = torch.distributions.Normal(mean, variance.sqrt())
    at = wanted.sample((3,))
    for method, samples, off in (
        ("auto", 1, 1e-9),
        ("quadrature", 1, 1e-9),
        ("samples", 20_000, 0),
    ):
        law = head.predictive(new, found, method=method, samples=samples)
        off = off or 0.05
        assert ((law.mean - mean).abs() < off * variance.sqrt()).all()
        torch.testing.assert_close(law.variance, variance, rtol=off, atol=0)
        torch.testing.assert_close(law.log_prob(at), wanted.log_prob(at), rtol=0, atol=2 * off)
        torch.testing.assert_close(law.cdf(at), wanted.cdf(at), rtol=0, atol=off)
    parts = predictive.uncertainty(head, found, new)
    torch.testing.assert_close(law.epistemic_variance, parts.epistemic, rtol=0.05, atol=0)
    torch.testing.assert_close(law.aleatoric_variance, parts.aleatoric)


def test_the_engine_covers_and_its_weights_never_see_it(rng) -> None:
    features, targets = linear(rng, 4000, 0.05)
    updates = []
    for scale in (None, 1.0):
        mtl = ba.BayesAgg({"y": heads.Gaussian(6, tasks=2, noise_scale=scale).double()})
        mtl.collect(features[:2000], {"y": targets[:2000]})
        mtl.update_prior()
        mtl.start_bayes()
        leaf = features[:50].clone().requires_grad_()
        mtl.backward(leaf, {"y": targets[:50]})
        updates.append(leaf.grad)
        law = mtl.predictive(features[2000:])["y"]
        inside = ((law.cdf(targets[2000:]) - 0.5).abs() < 0.45).double().mean()
        if scale is None:
            assert inside == pytest.approx(
                0.9, abs=0.02
            )  # 4,000 targets: a standard error of 0.005
            assert mtl.heads["y"].noise_scale == 1
        else:
            assert inside == 1  # what unit noise says of targets that follow a line to 0.05
    assert torch.equal(*updates)


@pytest.mark.parametrize("scheme", [None, inference.Ensemble(), inference.TaylorGGN()])
def test_it_stays_with_a_saved_engine(rng, scheme) -> None:
    features, targets = linear(rng, 100, 0.3)

    def engine() -> ba.BayesAgg:
        return ba.BayesAgg({"y": heads.Gaussian(6, tasks=2).double()}, inference=scheme)

    mtl, other = engine(), engine()
    mtl.collect(features, {"y": targets})
    mtl.update_prior()
    other.load_state_dict(mtl.state_dict())
    wanted, got = mtl.predictive(features)["y"], other.predictive(features)["y"]
    assert torch.equal(wanted.stddev, got.stddev)
    assert wanted.stddev.max() < 0.5


def test_targets_that_follow_exactly_keep_a_finite_density(rng) -> None:
    features, targets = linear(rng, 50, 0.0)
    head = heads.Gaussian(6, tasks=2).double()
    found = posterior_of(head, features, targets, priors.isotropic(head, 1e12))
    low = 1e-6 * targets.square().mean(0).sqrt()
    assert (found.info.noise_scale >= 0.999 * low).all()
    assert (found.info.noise_scale < 1e-4).all()
    zeros = posterior_of(head, features, 0 * targets, priors.isotropic(head, 1.0))
    assert torch.equal(zeros.info.noise_scale, torch.ones(2, dtype=torch.float64))


def test_a_noise_that_is_set_is_given(rng) -> None:
    head = heads.Gaussian(6, tasks=2).double()
    head.set_noise_scale(0.2)
    features, targets = linear(rng, 50, 0.3)
    found = posterior_of(head, features, targets, priors.isotropic(head, 1.0))
    assert found.info.noise_scale is None
    law = head.predictive(features, found)
    assert (law.variance > 0.04).all()
    assert (law.variance < 0.06).all()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(
    ("scheme", "tolerance"),
    [
        (inference.TaylorGGN(), 1e-9),
        (inference.Laplace(), 1e-7),
        (inference.Variational(steps=100), 0.02),
        (inference.Ensemble(members=400), 0.02),
    ],
)
def test_every_scheme_that_keeps_examples_finds_it(rng, scheme, tolerance, temperature) -> None:
    """Of one model: with holes, weights and a temperature it is that of Conjugate's sums."""
    features, targets = linear(rng, 120, 0.3)
    mask = torch.rand(120, 2, generator=rng) < 0.8
    given = (targets, mask, torch.rand(120, generator=rng, dtype=torch.float64) + 0.5)
    found = []
    for one in (scheme, inference.Conjugate()):
        mtl = ba.BayesAgg(
            {"y": heads.Gaussian(6, tasks=2, standardise=False).double()},
            inference=one,
            prior=priors.FullData(temperature=temperature),
            generator=torch.Generator().manual_seed(1),
        )
        mtl.collect(features, {"y": given})
        mtl.update_prior()
        law = mtl.predictive(features)["y"]
        found.append((mtl.posteriors()["y"].info.noise_scale, law.stddev))
    (got, wide), (wanted, width) = found
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=0)
    torch.testing.assert_close(wide, width, rtol=2 * tolerance, atol=0)
    assert (wanted < 0.4).all()


@pytest.mark.parametrize("variance", [1.0, "learned"])
def test_it_is_found_for_tasks_that_are_packed_in_parts(rng, monkeypatch, variance) -> None:
    from bayesagg_pyro.priors import _packed

    monkeypatch.setattr(_packed, "LARGE", 1)
    features, targets = linear(rng, 120, 0.3)
    scales = []
    for dtype in (None, torch.float64):
        policy = priors.FullData(variance, dtype=dtype)
        head = heads.Gaussian(6, tasks=2, standardise=False).double()
        mtl = ba.BayesAgg({"y": head}, inference=inference.TaylorGGN(), prior=policy)
        mtl.collect(features, {"y": targets})
        mtl.update_prior()
        scales.append(mtl.posteriors()["y"].info.noise_scale)
    torch.testing.assert_close(*scales)


@pytest.mark.parametrize(
    ("scheme", "policy"),
    [
        (inference.Ensemble(members=100), priors.FullData()),
        (inference.Conjugate(), priors.PreviousBatch()),
        (inference.TaylorGGN(), priors.Running()),
        (inference.Delta(), priors.FullData()),
    ],
)
def test_calibrate_finds_it_under_every_scheme(rng, scheme, policy) -> None:
    features, targets = linear(rng, 4000, 0.05)
    mtl = ba.BayesAgg(
        {"y": heads.Gaussian(6, tasks=2, standardise=False).double()},
        inference=scheme,
        prior=policy,
        generator=torch.Generator().manual_seed(1),
    )
    mtl.refit([(features[:1000], {"y": targets[:1000]})])
    if isinstance(scheme, inference.Delta):
        with torch.no_grad():
            mtl.heads["y"].weight.copy_(torch.linalg.lstsq(features, targets).solution.mT)
        mtl.refit([(features[:1000], {"y": targets[:1000]})])
    found = mtl.calibrate([(features[1000:2000], {"y": targets[1000:2000]})])["y"]
    torch.testing.assert_close(found, torch.full_like(found, 0.05), rtol=0.1, atol=0)
    new = features[2000:], targets[2000:]
    for method in ("auto", "samples"):
        law = mtl.heads["y"].predictive(new[0], mtl.posteriors()["y"], method=method)
        inside = ((law.cdf(new[1]) - 0.5).abs() < 0.45).double().mean()
        assert inside == pytest.approx(0.9, abs=0.03)
    parts = predictive.uncertainty(mtl.heads["y"], mtl.posteriors()["y"], new[0])
    torch.testing.assert_close(parts.aleatoric, found.square().expand_as(parts.aleatoric))
