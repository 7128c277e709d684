"""Distances, importance sampling, chains and conditioning: oracles, alarms and their absence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import diagnostics, heads, inference, posteriors, priors
from bayesagg_pyro.errors import DtypeError, SettingError, ShapeError

arviz: Any = pytest.importorskip("arviz")


def alarms(found: Any) -> dict[str, bool]:
    return {check.key: check.alarm for check in found.checks()}


def gaussian(rng: torch.Generator, tasks: int = 2, size: int = 4) -> posteriors.Gaussian:
    root = torch.randn(tasks, size, size, generator=rng, dtype=torch.float64)
    mean = torch.randn(tasks, size, generator=rng, dtype=torch.float64)
    return posteriors.Gaussian(mean, root @ root.mT + torch.eye(size, dtype=torch.float64))


def torch_normal(p: posteriors.Gaussian) -> Any:
    return torch.distributions.MultivariateNormal(
        p.mean, precision_matrix=p.precision_matrix.expand(p.tasks, -1, -1)
    )


class Fitted:
    """Binary data on which the Gaussian is good (many examples) or poor (few, wide prior)."""

    def __init__(self, rng: torch.Generator, examples: int, variance: float) -> None:
        self.head = heads.Bernoulli(3, tasks=2, bias=False).double()
        self.x = torch.randn(examples, 3, generator=rng, dtype=torch.float64)
        truth = torch.tensor([[2.0, -1.0, 0.5], [1.5, 1.0, -2.0]], dtype=torch.float64)
        probability = (self.x @ truth.mT).sigmoid()
        self.y = (
            torch.rand(examples, 2, generator=rng, dtype=torch.float64) < probability
        ).double()
        self.prior = priors.isotropic(self.head, variance)
        self.posterior = inference.Laplace().infer(self.head, self.x, self.y, self.prior)


# -- distances -----------------------------------------------------------------------------------


def test_kl_is_torchs(rng: torch.Generator) -> None:
    p, q = gaussian(rng), gaussian(rng)
    expected = torch.distributions.kl_divergence(torch_normal(p), torch_normal(q))
    torch.testing.assert_close(diagnostics.kl(p, q), expected)
    assert float(diagnostics.kl(p, p).abs().max()) < 1e-12


def test_kl_of_other_gaussians_and_of_samples(rng: torch.Generator) -> None:
    p = gaussian(rng)
    diagonal = posteriors.DiagonalGaussian(p.mean, 1 / p.variance)
    expected = torch.distributions.kl_divergence(
        torch_normal(p), torch_normal(diagonal.to_gaussian())
    )
    torch.testing.assert_close(diagnostics.kl(p, diagonal), expected)
    samples = posteriors.Empirical(p.sample((100,), generator=rng))
    with pytest.raises(DtypeError, match="wasserstein2"):
        diagnostics.kl(p, samples)
    with pytest.raises(ShapeError, match="cannot be compared"):
        diagnostics.kl(p, gaussian(rng, size=3))


def test_kl_by_monte_carlo_meets_the_closed_form(rng: torch.Generator) -> None:
    class Wrapped(posteriors.Posterior):
        """A Gaussian that hides what it is."""

        def __init__(self, inner: posteriors.Gaussian) -> None:
            super().__init__(inner.tasks, inner.mean.shape[-1])
            self.inner = inner

        def rsample(self, sample_shape: Any = (), *, generator: Any = None) -> Tensor:
            return self.inner.rsample(sample_shape, generator=generator)

        def log_prob(self, value: Tensor) -> Tensor:
            return self.inner.log_prob(value)

    p, q = gaussian(rng), gaussian(rng)
    sampled = diagnostics.kl(Wrapped(p), q, draws=40000, generator=rng)
    torch.testing.assert_close(sampled, diagnostics.kl(p, q), rtol=0.05, atol=0.02)


def test_wasserstein_in_one_dimension_and_when_commuting(rng: torch.Generator) -> None:
    one = torch.tensor([[1.0]], dtype=torch.float64)
    p = posteriors.Gaussian(one, one[None] / 4)  # N(1, 2²)
    q = posteriors.Gaussian(4 * one, one[None] / 25)  # N(4, 5²)
    torch.testing.assert_close(
        diagnostics.wasserstein2(p, q), torch.tensor([math.sqrt(18.0)], dtype=torch.float64)
    )
    r = gaussian(rng)
    assert float(diagnostics.wasserstein2(r, r).max()) < 1e-6
    shifted = r.with_mean(r.mean + 3)
    torch.testing.assert_close(
        diagnostics.wasserstein2(r, shifted), torch.full((2,), 6.0, dtype=torch.float64)
    )
    s = gaussian(rng)
    torch.testing.assert_close(diagnostics.wasserstein2(r, s), diagnostics.wasserstein2(s, r))


def test_reference_alarms_on_a_shift_and_on_a_narrow_posterior(rng: torch.Generator) -> None:
    truth = gaussian(rng)
    reference = posteriors.Empirical(truth.sample((4000,), generator=rng))
    good = diagnostics.against_reference(truth, reference)
    assert alarms(good) == {"z_score": False, "covariance_ratio": False}
    assert float(good.covariance_error.max()) < 0.1
    assert bool(((good.spread - 1).abs() < 0.1).all())
    shifted = truth.with_mean(truth.mean + 0.6 * truth.variance.sqrt())
    assert alarms(diagnostics.against_reference(shifted, reference))["z_score"]
    narrow = posteriors.Gaussian(truth.mean, 4 * truth.precision_matrix)
    found = diagnostics.against_reference(narrow, reference)
    assert alarms(found) == {"z_score": False, "covariance_ratio": True}
    torch.testing.assert_close(found.ratio, torch.full_like(found.ratio, 0.5), rtol=0.05, atol=0)


# -- importance sampling ---------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_psis_is_arviz(rng: torch.Generator, scale: float) -> None:
    # The tail of the paper has ⌈3 √S⌉ draws, that of ArviZ 1 ⌊3 √S⌋: here a whole number, 135.
    ratios = scale * torch.randn(2025, 3, generator=rng, dtype=torch.float64)
    ratios[:, 2] = torch.distributions.Exponential(1 / scale).icdf(
        torch.rand(2025, generator=rng, dtype=torch.float64)
    )
    weights, khat = diagnostics.psis(ratios)
    if hasattr(arviz, "psislw"):
        expected, expected_k = arviz.psislw(ratios.T.numpy())
    else:  # ArviZ 1, which takes log-likelihoods
        psislw = pytest.importorskip("arviz_stats.base").array_stats.psislw
        expected, expected_k = psislw(-ratios.T.numpy())
    np.testing.assert_allclose(khat.numpy(), expected_k, rtol=1e-6)
    np.testing.assert_allclose(weights.T.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_khat_judges_the_gaussian(rng: torch.Generator) -> None:
    good, poor = Fitted(rng, 400, 1.0), Fitted(rng, 8, 400.0)
    found = {}
    for name, fit in {"good": good, "poor": poor}.items():
        found[name] = diagnostics.importance(
            fit.head, fit.posterior, fit.prior, fit.x, fit.y, generator=rng
        )
    assert alarms(found["good"]) == {"khat": False}
    assert alarms(found["poor"]) == {"khat": True}
    assert bool((found["good"].efficiency > 0.8).all())
    assert float(found["good"].log_weights.exp().sum(0).mean()) == pytest.approx(1)


def test_the_exact_posterior_has_equal_weights(rng: torch.Generator) -> None:
    head = heads.Gaussian(3, tasks=2, noise_scale=0.7).double()
    x = torch.randn(30, 3, generator=rng, dtype=torch.float64)
    y = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    mask = torch.rand(30, 2, generator=rng) < 0.6
    prior = priors.isotropic(head, 2.0)
    exact = inference.Conjugate().infer(head, x, (y, mask), prior)
    found = diagnostics.importance(head, exact, prior, x, (y, mask), generator=rng)
    torch.testing.assert_close(found.efficiency, torch.ones(2, dtype=torch.float64))
    assert alarms(found) == {"khat": False}
    assert float(found.khat.max()) == -math.inf
    wrong = diagnostics.importance(head, exact, prior, x, y, generator=rng)  # other data
    assert float(wrong.efficiency.max()) < 0.9
    samples = posteriors.Empirical(exact.sample((50,), generator=rng))
    with pytest.raises(DtypeError, match="has no density"):
        diagnostics.importance(head, samples, prior, x, y)
    with pytest.raises(SettingError, match="draws must be an integer of at least 100"):
        diagnostics.importance(head, exact, prior, x, y, draws=10)


def test_weights_whose_noise_is_integrated_out_go_with_no_likelihood(rng: torch.Generator) -> None:
    """Weighed by one of the head's noise, the exact posterior had a k-hat of 1.1."""
    head = heads.Gaussian(3).double()
    x = torch.randn(200, 3, generator=rng, dtype=torch.float64)
    prior = priors.isotropic(head, 1.0)
    exact = inference.IntegratedNoise().infer(head, x, x[:, :1] - x[:, 1:2], prior)
    for given in ((exact, prior), (exact, exact), (prior, exact)):
        with pytest.raises(DtypeError, match="NormalInverseGamma has no density that goes with"):
            diagnostics.importance(head, *given, x, x[:, :1])


# -- chains and conditioning -----------------------------------------------------------------------


def autoregressive(rng: torch.Generator, memory: float, chains: int = 4) -> Tensor:
    noise = torch.randn(chains, 1000, 2, 3, generator=rng, dtype=torch.float64)
    state, path = noise[:, 0], []
    for step in range(1000):
        state = memory * state + math.sqrt(1 - memory**2) * noise[:, step]
        path.append(state)
    return torch.stack(path, 1)


def test_convergence_is_arviz(rng: torch.Generator) -> None:
    chains = autoregressive(rng, 0.5)
    found = diagnostics.convergence(chains)
    assert alarms(found) == {"rhat": False, "ess": False}
    data = arviz.convert_to_dataset({"w": chains.numpy()})
    np.testing.assert_allclose(found.rhat.numpy(), arviz.rhat(data)["w"].values, atol=2e-3)
    np.testing.assert_allclose(found.ess.numpy(), arviz.ess(data)["w"].values, rtol=0.1)


def test_chains_that_disagree_alarm(rng: torch.Generator) -> None:
    chains = autoregressive(rng, 0.0)
    shifted, wide = chains.clone(), chains.clone()
    shifted[0, :, 1, 2] += 1
    wide[0, :, 0, 1] *= 3
    for bad in (shifted, wide):
        assert alarms(diagnostics.convergence(bad))["rhat"]
    assert alarms(diagnostics.convergence(autoregressive(rng, 0.99)))["ess"]
    with pytest.raises(ShapeError, match="samples must be"):
        diagnostics.convergence(chains[0])


def test_conditioning(rng: torch.Generator) -> None:
    good = gaussian(rng)
    found = diagnostics.conditioning(good)
    assert alarms(found) == {"condition": False, "jitter": False}
    torch.testing.assert_close(found.condition, good.condition_number())
    head = heads.Gaussian(3).double()
    x = torch.randn(50, 3, generator=rng, dtype=torch.float64)
    x[:, 2] = 1e-9 * x[:, 1]
    prior = priors.isotropic(head, 1e15)
    poor = inference.Conjugate().infer(head, x, x[:, :1], prior)
    assert alarms(diagnostics.conditioning(poor))["condition"]


# -- ArviZ -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning:arviz")
def test_loo_prefers_the_model_of_the_data(rng: torch.Generator) -> None:
    x = torch.randn(80, 2, generator=rng, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    y = y + 0.5 * torch.randn(80, 1, generator=rng, dtype=torch.float64)
    mask = torch.ones(80, 1, dtype=torch.bool)
    mask[:5] = False
    y[:5] = 1e6  # not observed: must not matter
    scores = {}
    for name, columns in {"both": [0, 1], "one": [0]}.items():
        head = heads.Gaussian(len(columns), noise_scale=0.5, name=name).double()
        posterior = inference.Conjugate().infer(
            head, x[:, columns], (y, mask), priors.isotropic(head, 10.0)
        )
        data = diagnostics.to_inference_data(
            head, posterior, x[:, columns], (y, mask), generator=rng
        )
        assert data["log_likelihood"][f"{name}.targets"].shape == (1, 1000, 75)
        assert data["posterior"][f"{name}.weight"].shape == (1, 1000, 1, len(columns))
        found = arviz.loo(data, var_name=f"{name}.targets")
        scores[name] = float(found.elpd if hasattr(found, "elpd") else found.elpd_loo)
        if name == "both":  # exact leave-one-out of a linear-Gaussian model
            assert scores[name] == pytest.approx(_exact_loo(head, x[5:], y[5:], 10.0), abs=0.5)
    assert scores["both"] > scores["one"] + 20


def _exact_loo(head: heads.Head, x: Tensor, y: Tensor, variance: float) -> float:
    total = 0.0
    for left in range(len(x)):
        keep = torch.arange(len(x)) != left
        prior = priors.isotropic(head, variance)
        posterior = inference.Conjugate().infer(head, x[keep], y[keep], prior)
        predictive = head.predictive(x[left : left + 1], posterior)
        total += float(predictive.log_prob(y[left : left + 1]))
    return total


def test_classes_and_several_tasks(rng: torch.Generator) -> None:
    head = heads.Categorical(3, classes=4, name="kind").double()
    x = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(4, (20,), generator=rng)
    posterior = inference.Laplace().infer(head, x, y, priors.isotropic(head, 1.0))
    data = diagnostics.to_inference_data(head, posterior, x, y, draws=50, generator=rng)
    assert data["log_likelihood"]["kind.targets"].shape == (1, 50, 20)
    weight = torch.from_numpy(data["posterior"]["kind.weight"].values)[0]
    expected = torch.log_softmax(head(x, weight), -1)[7, torch.arange(20), y]
    np.testing.assert_allclose(data["log_likelihood"]["kind.targets"].values[0, 7], expected)


class Raw:
    """Targets in units that a default head leaves, and their densities by draws and by formula."""

    def __init__(self, rng: torch.Generator, scheme: inference.Scheme) -> None:
        x = torch.randn(60, 3, generator=rng, dtype=torch.float64)
        noise = torch.randn(60, 2, generator=rng, dtype=torch.float64)
        self.y = 1000 + torch.tensor([200.0, 3.0]) * x[:, :2] + torch.tensor([50.0, 2.0]) * noise
        mtl = ba.BayesAgg({"y": heads.Gaussian(3, 2, bias=True)}, inference=scheme).double()
        mtl.collect(x, {"y": self.y})
        mtl.update_prior()
        self.law = mtl.predictive(x)["y"]
        self.x, self.head, self.posterior = x, mtl.heads["y"], mtl.posteriors()["y"]
        self.data = diagnostics.to_inference_data(
            self.head, self.posterior, x, self.y, draws=4000, generator=rng
        )
        found = torch.from_numpy(self.data["log_likelihood"]["y.targets"].values[0])
        self.each = found.unflatten(-1, (60, 2))


@pytest.mark.parametrize(
    "scheme",
    [inference.Conjugate(), inference.IntegratedNoise(), inference.Ensemble(members=400)],
)
def test_its_densities_are_those_of_predictions_in_the_targets_units(
    rng: torch.Generator, scheme: inference.Scheme
) -> None:
    raw = Raw(rng, scheme)
    found = raw.each.logsumexp(0) - math.log(len(raw.each))
    torch.testing.assert_close(found, raw.law.log_prob(raw.y), atol=0.05, rtol=0)
    observed = raw.data["observed_data"]["y.targets"].values
    np.testing.assert_allclose(observed, raw.y.flatten())


def test_each_of_its_densities_is_that_of_its_weights(rng: torch.Generator) -> None:
    raw = Raw(rng, inference.Conjugate())
    weight = torch.from_numpy(raw.data["posterior"]["y.weight"].values[0])
    units, noise = raw.head.units, raw.posterior.info.noise_scale
    outputs = torch.cat([raw.x, torch.ones(60, 1)], 1) @ weight.mT
    normal = torch.distributions.Normal(units.loc + units.scale * outputs, units.scale * noise)
    torch.testing.assert_close(raw.each, normal.log_prob(raw.y))


def test_weights_of_classes_and_examples_are_no_part_of_a_density(rng: torch.Generator) -> None:
    head = heads.Bernoulli(3, pos_weight=5.0, name="b").double()
    x = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    y, weight = (x[:, :1] > 0).double(), torch.full((20, 1), 3.0)
    posterior = inference.Laplace().infer(head, x, y, priors.isotropic(head, 1.0))
    data = diagnostics.to_inference_data(head, posterior, x, (y, None, weight), draws=50)
    drawn = torch.from_numpy(data["posterior"]["b.weight"].values)[0]
    expected = torch.distributions.Bernoulli(logits=head(x, drawn)).log_prob(y)[..., 0].detach()
    np.testing.assert_allclose(data["log_likelihood"]["b.targets"].values[0], expected)
