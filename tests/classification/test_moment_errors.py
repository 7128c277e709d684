"""Sampled moments state their standard error, and carry it wherever the moments go."""

from __future__ import annotations

import warnings

import pytest
import torch
from dense import F64, normal
from sampling import world

from bayesagg_pyro import errors, gradients, heads, inference, priors
from bayesagg_pyro.gradients import Conditional, MonteCarlo
from bayesagg_pyro.targets import Targets


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "make",
    [
        lambda g: Conditional(128, generator=g),
        lambda g: Conditional(128, sobol=False, generator=g),
        lambda g: MonteCarlo(512, generator=g),
    ],
    ids=["sobol", "plain", "monte carlo"],
)
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_two_standard_errors_cover_the_truth(rng, make, structure) -> None:
    """About 95 times in 100; somewhat less where the error itself is of 16 repetitions."""
    w = world(rng, structure, 4, 3, 15)
    exact = gradients.distribution(*w, estimator=Conditional(2**14))
    covered = []
    for seed in range(30):
        found = gradients.distribution(*w, estimator=make(seeded(100 + seed)))
        error = found.moment_error
        assert error.mean.shape == found.mean.shape
        covered.append(
            [
                ((a - b).abs() <= 2 * e).double().mean()
                for a, b, e in zip(
                    (found.mean, found.variance),
                    (exact.mean, exact.variance),
                    error,
                    strict=True,
                )
            ]
        )
    for share in torch.tensor(covered).mean(0):
        assert 0.87 < share < 0.99


def test_asking_makes_no_graph_of_parameters_that_learn() -> None:
    head = heads.Ordinal(3, classes=3)
    h, y = torch.randn(8, 3, generator=seeded(0)), torch.arange(8)[:, None] % 3
    prior = priors.isotropic(head, 1.0)
    found = gradients.distribution(head, prior, h, y)
    assert any(parameter.requires_grad for parameter in head.parameters())
    assert not found.moment_error.mean.requires_grad
    assert (found.moment_error.mean < 1e-3).all()


def test_asking_uses_nobodys_random_numbers(rng) -> None:
    w = world(rng, "full", 3, 2, 10)
    generator = seeded(0)
    found = gradients.distribution(*w, estimator=MonteCarlo(64, generator=generator))
    state, own = generator.get_state(), torch.get_rng_state()
    assert (found.moment_error.mean > 0).all()
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), own)


@pytest.mark.parametrize("kind", [Conditional, MonteCarlo])
def test_a_tolerance_raises_the_samples(rng, kind) -> None:
    w = world(rng, "full", 3, 4, 10)
    grad = gradients.distribution(*w, estimator=kind(16, tolerance=0.05, generator=seeded(1)))
    error, std = grad.moment_error, grad.variance.sqrt()
    assert (error.mean / std).square().mean(-1).sqrt().max() <= 0.05
    assert (error.variance / std.square()).square().mean(-1).sqrt().max() <= 0.05
    rough = gradients.distribution(*w, estimator=kind(16, generator=seeded(1))).moment_error
    assert (rough.variance / std.square()).max() > 0.05
    with pytest.raises(errors.SettingError, match="tolerance"):
        kind(tolerance=0.0)


def test_samples_run_out_with_a_warning(rng, monkeypatch) -> None:
    from bayesagg_pyro.gradients import _monte_carlo

    monkeypatch.setattr(_monte_carlo, "_LIMIT", 64)
    w = world(rng, "full", 3, 2, 10)
    with pytest.warns(RuntimeWarning, match="MonteCarlo: with 64 .* 0.001 was asked for"):
        gradients.distribution(*w, estimator=MonteCarlo(16, tolerance=1e-3))


def test_errors_go_where_the_moments_go(rng) -> None:
    """Joined, weighed, cut and masked; closed forms have none."""
    h = normal(rng, 6, 3)
    soft, real = heads.Categorical(3, 4).double(), heads.Gaussian(3, 2).double()
    y, z = torch.randint(0, 4, (6, 1), generator=rng), normal(rng, 6, 2)
    p = inference.TaylorGGN().infer(soft, h, y, priors.isotropic(soft, 1.0))
    q = inference.Conjugate().infer(real, h, z, priors.isotropic(real, 1.0))
    grad = gradients.distribution(soft, p, h, y, estimator=Conditional(64, generator=rng))
    closed = gradients.distribution(real, q, h, z)
    assert (closed.moment_error.mean == 0).all()
    assert (closed.moment_error.variance == 0).all()
    error = grad.moment_error
    joint = gradients.cat({"soft": grad, "real": closed})
    assert torch.equal(joint.moment_error.mean, torch.cat([error.mean, 0 * closed.mean]))
    cut = joint.examples(slice(1, 3)).moment_error
    assert torch.equal(cut.variance[:1], error.variance[:, 1:3])
    weight, mask = torch.rand(6, 1, generator=rng, dtype=F64), torch.ones(6, 1).bool()
    mask[2] = False
    weighed = gradients.distribution(
        soft, p, h, Targets(y, mask, weight), estimator=Conditional(64, generator=rng)
    ).moment_error
    factor = (weight * mask).mT[..., None]
    torch.testing.assert_close(weighed.mean, error.mean * factor)
    torch.testing.assert_close(weighed.variance, error.variance * factor.square())
    plug = gradients.distribution(soft, p, h, y, estimator=gradients.PlugIn(Conditional(64)))
    assert (plug.moment_error.mean == 0).all()
    assert torch.equal(plug.moment_error.variance, error.variance)
    alone = gradients.GradientDistribution(grad.mean, grad.variance)
    with pytest.raises(errors.StateError, match="error"):
        alone.moment_error  # noqa: B018


def test_a_heteroscedastic_head_knows_its_rule(rng) -> None:
    head = heads.Heteroscedastic(2, bias=False).double()
    h, y = normal(rng, 4, 2), normal(rng, 4, 1)
    p = inference.Laplace().infer(head, h, y, priors.isotropic(head, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad = gradients.distribution(head, p, h, y)
    assert (grad.moment_error.variance / grad.variance).max() < 1e-5


def test_a_near_certain_class_has_no_gradient_of_rounding(rng) -> None:
    """δ_y = p_y − 1 is minus the sum of the other probabilities, however small that is."""
    head = heads.Categorical(2, 3, bias=False).double()
    h, y = torch.ones(1, 2, dtype=F64), torch.zeros(1, 1, dtype=torch.long)
    p = inference.TaylorGGN().infer(head, h, y, priors.isotropic(head, 1e-6))
    logits = torch.tensor([25.0, -20.0, -22.0], dtype=F64)
    p = p.with_mean((logits[:, None] * torch.ones(2) / 2).reshape(1, -1))
    grad = gradients.distribution(head, p, h, y)
    off = torch.softmax(logits, 0)[1:]
    expected = off @ (logits[1:] - logits[0]) / 2
    assert abs(grad.mean[0, 0, 0] / expected - 1) < 1e-3
    assert (grad.variance > 0).all()
