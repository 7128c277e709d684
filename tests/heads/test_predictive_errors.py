"""Predictive distributions made of draws say how far off they may be."""

from __future__ import annotations

import pyro
import pytest
import torch
from likelihoods import gaussian, make, normal

from bayesagg_pyro import errors, heads, posteriors, priors
from bayesagg_pyro.predictive import predictive, uncertainty


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["ordinal logit", "bernoulli", "categorical", "student"])
def test_standard_errors_cover_the_truth(rng, name) -> None:
    """Two standard errors hold the exact value about 95 times in 100."""
    own = {"bernoulli": heads.Bernoulli(3, 2), "categorical": heads.Categorical(3, 2)}
    head = own[name].double() if name in own else make(name)
    p, h = gaussian(rng, head), normal(rng, 5, 3)
    exact = predictive(head, h, p)
    covered = []
    for seed in range(60):
        found = predictive(head, h, p, method="samples", samples=200, generator=seeded(seed))
        off = found.mean - exact.mean if name == "student" else found.probs - exact.probs
        assert found.standard_error.shape == off.shape
        covered.append((off.abs() <= 2 * found.standard_error).double().mean())
    assert 0.9 < torch.stack(covered).mean() < 0.99


@pytest.mark.parametrize("name", ["ordinal logit", "student"])
def test_a_tolerance_is_met(rng, name) -> None:
    head = make(name)
    p, h = gaussian(rng, head), normal(rng, 4, 3)
    found = head.predictive(h, p, method="samples", samples=8, tolerance=0.02)
    error = found.standard_error
    error = error if name.startswith("ordinal") else error / found.variance.sqrt()
    assert error.max() <= 0.02
    assert head.predictive(h, p, method="samples", samples=8).standard_error.max() > 0.02


def test_stored_draws_cannot_be_more(rng) -> None:
    head = make("ordinal logit")
    p = posteriors.Empirical(normal(rng, 10, 2, 3))
    with pytest.warns(RuntimeWarning, match="sampling error"):
        predictive(head, normal(rng, 4, 3), p, tolerance=1e-4)
    for bad in (0.0, -0.1):
        with pytest.raises(errors.SettingError, match="tolerance"):
            predictive(head, normal(rng, 4, 3), p, tolerance=bad)


def test_one_draw_says_nothing(rng) -> None:
    for name in ("ordinal logit", "student"):
        head = make(name)
        found = predictive(
            head, normal(rng, 2, 3), gaussian(rng, head), method="samples", samples=1
        )
        assert found.standard_error.isinf().all()


@pytest.mark.parametrize("kind", ["closed form", "quadrature", "draws", "pyro"])
def test_what_does_not_fit_is_refused(rng, kind: str) -> None:
    """Whichever way a head predicts."""

    def model(features: torch.Tensor, targets: torch.Tensor | None = None) -> None:
        weight = pyro.sample("weight", pyro.distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", pyro.distributions.Normal(features @ weight, 1.0), obs=targets)

    head = {
        "closed form": lambda: heads.Gaussian(3),
        "quadrature": lambda: heads.Bernoulli(3),
        "draws": lambda: heads.Categorical(3, 3),
        "pyro": lambda: heads.FromPyro(model, 3),
    }[kind]()
    features, own = normal(rng, 4, 3), priors.isotropic(head, 1.0)
    for other in (heads.Gaussian(9), heads.Gaussian(3, tasks=2)):
        with pytest.raises(errors.ShapeError, match="posterior is over weights of shape"):
            head.predictive(features, priors.isotropic(other, 1.0))
        drawn = posteriors.Empirical(priors.isotropic(other, 1.0).sample((5,)))
        with pytest.raises(errors.ShapeError, match="posterior is over weights of shape"):
            head.predictive(features, drawn)
    for bad in (0, -5, 2.5):
        for call in (head.predictive, lambda h, p, **o: uncertainty(head, p, h, **o)):
            with pytest.raises(errors.SettingError, match="samples"):
                call(features, own, samples=bad)
    with pytest.raises(errors.SettingError, match="tolerance"):
        head.predictive(features, own, tolerance=-1.0)
    for wrong in (features[None], features[:, :2], features[0]):
        with pytest.raises(errors.ShapeError, match="features must have shape"):
            head.predictive(wrong, own)


@pytest.mark.parametrize("df", [0.8, 1.5])
def test_a_tolerance_where_targets_have_no_variance(rng, df: float) -> None:
    """It is in standard deviations of the mean given the weights; without a mean none is met."""
    head = heads.StudentT(3, df=df).double()
    p, h = gaussian(rng, head), normal(rng, 4, 3)
    if df < 1:
        with pytest.warns(RuntimeWarning, match="sampling error of up to nan"):
            head.predictive(h, p, method="samples", samples=4, tolerance=0.05)
        return
    found = head.predictive(h, p, method="samples", samples=4, tolerance=0.05)
    assert (found.standard_error / found.outputs.std(0)).max() <= 0.051
    assert len(found.outputs) == 512  # the first of 4, 8, ... of at least 1 / 0.05²


@pytest.mark.parametrize("method", ["cdf", "icdf", "entropy"])
def test_what_has_no_formula_says_what_to_use(rng, method: str) -> None:
    """torch's own error has no message."""

    def model(features: torch.Tensor, targets: torch.Tensor | None = None) -> None:
        weight = pyro.sample("weight", pyro.distributions.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", pyro.distributions.Normal(features @ weight, 1.0), obs=targets)

    features = torch.randn(5, 4, generator=rng)
    made = [heads.FromPyro(model, 4), heads.Poisson(4), heads.StudentT(4), heads.Bernoulli(4)]
    for head in made[: 3 if method == "entropy" else 4]:
        law = head.predictive(features, priors.isotropic(head, 1.0), method="samples", samples=20)
        given = () if method == "entropy" else (torch.full((5, 1), 0.5),)
        with pytest.raises(errors.UnsupportedError, match=rf"head.*no {method}: .*(draws|probs)"):
            getattr(law, method)(*given)
