"""Prior variance that inducing points cannot express is part of every prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_gaussian_process import D, dense, normal, rbf

from bayesagg_pyro import heads, inference, posteriors, predictive, priors


def test_draws_predict_what_the_points_cannot_express(rng: torch.Generator) -> None:
    """By k(h, h) − φᵀφ beside the draws' own variance, however few are stored."""
    h, y, new = normal(rng, 30, D), normal(rng, 30, 1), normal(rng, 6, D)
    kernel, z = rbf(), h[:8]
    head = heads.GaussianProcess(D, inducing=z, kernel=kernel, noise_scale=0.1)
    posterior = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    new = torch.cat([new, torch.full((1, D), 9.0), z[:1]])
    kzz, kzn = dense(kernel, z, z), dense(kernel, z, new)
    residual = 1.3 - (kzn * torch.linalg.solve(kzz, kzn)).sum(0)[:, None]
    assert residual[-2] > 1.2
    exact = head.predictive(new, posterior)
    law = head.predictive(new, posterior, method="samples", samples=20_000)
    torch.testing.assert_close(law.variance, exact.variance, rtol=0.06, atol=0)
    stored = posterior.sample((5,), generator=rng)
    few = head.predictive(new, posteriors.Empirical(stored), samples=20_000)
    outputs = head(new, stored).detach()
    spread = outputs.var(0, correction=0) + residual
    torch.testing.assert_close(few.variance, spread + 0.01, rtol=0.06, atol=0)
    torch.testing.assert_close(few.epistemic_variance, spread, rtol=0.06, atol=1e-6)
    torch.testing.assert_close(few.standard_error, (spread / 5).sqrt(), rtol=0.06, atol=1e-4)
    leaf = new.clone().requires_grad_()  # z is among them, where the residual is 0
    head.predictive(leaf, posteriors.Empirical(stored)).variance.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["bernoulli", "two classes", "three classes", "heteroscedastic"])
def test_every_output_has_what_the_points_cannot_express(kind: str, rng: torch.Generator) -> None:
    """Far from the points each is N(its bias, k(h, h)), here by 400,000 draws of numpy's."""
    make = {
        "bernoulli": lambda: heads.Bernoulli(D),
        "two classes": lambda: heads.Categorical(D, 2),
        "three classes": lambda: heads.Categorical(D, 3),
        "heteroscedastic": lambda: heads.Heteroscedastic(D),
    }
    head = make[kind]().embed(heads.InducingPoints(D, normal(rng, 8, D), rbf())).double()
    count = head.outputs_per_task
    bias = torch.linspace(-1.0, 0.5, count, dtype=torch.float64)
    mean = torch.zeros(count, 9, dtype=torch.float64)
    mean[:, -1] = bias
    posterior = posteriors.DiagonalGaussian(
        mean.reshape(1, -1), torch.full((1, 9 * count), 1e9).double(), outputs_per_task=count
    )
    few = posteriors.Empirical(posterior.sample((3,), generator=rng), outputs_per_task=count)
    far = torch.full((1, D), 30.0, dtype=torch.float64)
    drawn = np.random.default_rng(0).normal(bias, np.sqrt(1.3), (400_000, count))
    if kind == "heteroscedastic":
        wanted = [1.3, np.exp(bias[1].item() + 0.65)]
    else:
        odds = np.exp(drawn if count > 1 else np.c_[0 * drawn, drawn])
        wanted = (odds / odds.sum(1, keepdims=True)).mean(0)
    for p, method, off in (
        (posterior, "auto", 0.02 if kind == "three classes" else 0.005),  # made of draws
        (posterior, "samples", 0.02),
        (few, "auto", 0.02),
    ):
        law = head.predictive(far, p, method=method, samples=40_000)
        if kind == "heteroscedastic":
            found, off = [law.epistemic_variance, law.aleatoric_variance], 3 * off
        else:
            found = law.probs if count > 1 else [1 - law.probs, law.probs]
        for x, y in zip(torch.as_tensor(found).flatten(), wanted, strict=True):
            assert x.item() == pytest.approx(y, rel=off)
        parts = predictive.uncertainty(head, p, far, samples=4000)
        assert parts.epistemic > 0.05
