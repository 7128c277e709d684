"""Conditional and Monte Carlo moments of softmax heads against a million draws of the weights."""

from __future__ import annotations

import pytest
import torch
from dense import close, gaussian, normal
from sampling import STRUCTURES, World, estimates, reference, world

from bayesagg_pyro import errors, gradients, heads, posteriors, priors

ESTIMATORS = {
    "sobol": (gradients.Conditional(1024, sobol=True), 16),
    "random": (gradients.Conditional(1024, sobol=False), 32),
    "monte carlo": (gradients.MonteCarlo(4096), 12),
}


def agree(w: World, truth, name: str) -> None:
    """Averages over seeds are within 5 standard errors of the reference, both errors counted.

    A variance over low-discrepancy points is biased by their tiny error squared; 1e-4 allows it.
    """
    estimator, seeds = ESTIMATORS[name]
    for got, expected, error in zip(
        estimates(w, estimator, seeds), truth[:2], truth[2:], strict=True
    ):
        own = got.std(0) / seeds**0.5
        allowed = 5 * (own.square() + error.square()).sqrt() + 1e-4 * expected.abs()
        assert ((got.mean(0) - expected).abs() < allowed).all()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("shape", [(3, 4), (3, 14)], ids=["d=4", "d=14"])
def test_both_agree_with_a_million_draws(rng, structure, shape) -> None:
    """With fewer and with more features than coefficients (12 for a full covariance, else 6).

    The samples meet the features in the one case and not in the other.
    """
    w = world(rng, structure, *shape, examples=10, batch=2)
    truth = reference(rng, w)
    for name in ESTIMATORS:
        agree(w, truth, name)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_several_tasks_in_one_head_and_class_weights(rng, structure) -> None:
    weight = torch.tensor([0.5, 1.0, 3.0]).double()
    w = world(rng, structure, 3, 4, 12, tasks=2, class_weight=weight, bias=False)
    truth = reference(rng, w, draws=200_000)
    for name in ESTIMATORS:
        agree(w, truth, name)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_tasks_do_not_mix(rng, structure) -> None:
    """A task's moments are those of a head that holds it alone, with the same points."""
    w = world(rng, structure, 3, 4, 12, tasks=3)
    whole = estimates(w, gradients.Conditional(256), 1)
    tensors = w.posterior.tensors()
    for t in range(3):
        part = {k: v if v.shape[0] == 1 else v[t : t + 1] for k, v in tensors.items()}
        p = type(w.posterior)(**part).replace(outputs_per_task=3)
        one = World(heads.Categorical(4, 3).double(), p, w.features, w.targets[:, t : t + 1])
        for a, b in zip(estimates(one, gradients.Conditional(256), 1), whole, strict=True):
            close(a[:, 0], b[:, t])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("d", [4, 40])
def test_examples_do_not_mix(rng, structure, d) -> None:
    """However the batch is cut into chunks: an example alone has the moments it has among 70."""
    w = world(rng, structure, 5, d, 12, batch=70)
    whole = estimates(w, gradients.Conditional(1024), 1)
    for b in (0, 33, 69):
        one = w._replace(features=w.features[b : b + 1], targets=w.targets[b : b + 1])
        for got, expected in zip(
            estimates(one, gradients.Conditional(1024), 1), whole, strict=True
        ):
            close(got[:, :, 0], expected[:, :, b], 1e-9)


@pytest.mark.parametrize("sobol", [True, False])
def test_structures_agree_where_they_coincide(rng, sobol) -> None:
    """One and the same distribution, written densely and by its structure."""
    c = gradients.Conditional(2**14 if sobol else 2**12, sobol=sobol)
    for structure in ("diag", "kron"):
        w = world(rng, structure, 4, 5, 12)
        dense = w._replace(posterior=w.posterior.to_gaussian())
        own, other = estimates(w, c, 8), estimates(dense, c, 8)
        for a, b in zip(own, other, strict=True):
            error = ((a.var(0) + b.var(0)) / 8).sqrt()
            assert ((a.mean(0) - b.mean(0)).abs() < 6 * error + 1e-4 * b.mean(0).abs()).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_certain_logits(rng, structure) -> None:
    """No features, no bias: δ is constant, E g = Σ δ_c M_c and Var g = δᵀ Cov(W_d) δ, exactly."""
    w = world(rng, structure, 3, 4, 10, bias=False)
    w = w._replace(features=torch.zeros(3, 4).double(), targets=torch.arange(3)[:, None])
    s = torch.linalg.inv(w.posterior.to_gaussian().precision_matrix)[0].reshape(3, 4, 3, 4)
    m = w.posterior.mean.reshape(3, 4)
    for estimator in (gradients.Conditional(16), gradients.Conditional(16, sobol=False)):
        mean, variance = estimates(w, estimator, 1)
        for b in range(3):
            delta = torch.full((3,), 1 / 3, dtype=torch.float64)
            delta[b] -= 1
            close(mean[0, 0, b], delta @ m)
            close(variance[0, 0, b], torch.einsum("c,e,cded->d", delta, delta, s))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_without_uncertainty_it_is_the_plain_gradient(rng, structure) -> None:
    """A prior variance of 1e-20 leaves nothing to the data: Delta at the prior's mean."""
    head = heads.Categorical(4, 3, tasks=2, class_weight=[0.5, 1.0, 2.0]).double()
    mean = normal(rng, 2, 15)
    if structure == "full":
        p = gaussian(mean, 1e-20 * torch.eye(15).expand(2, 15, 15).double(), 3)
    elif structure == "diag":
        p = posteriors.DiagonalGaussian(mean, torch.full((2, 15), 1e20).double()).replace(
            outputs_per_task=3
        )
    else:
        zero = torch.zeros(2, 3, 3).double(), torch.zeros(1, 5, 5).double()
        p = posteriors.KroneckerGaussian(mean, *zero, torch.ones(2), torch.full((2,), 1e20))
        p = p.to(dtype=torch.float64).replace(outputs_per_task=3)
    h, y = normal(rng, 6, 4), torch.randint(0, 3, (6, 2), generator=rng)
    found = gradients.distribution(head, p, h, y, estimator=gradients.Conditional(64))
    for t in range(2):
        x = h.clone().requires_grad_()
        (g,) = torch.autograd.grad(head.loss(head(x, mean), y)[:, t].sum(), x)
        close(found.mean[t], g, 1e-7)
    assert (found.variance < 1e-18).all()


def test_the_full_covariance_is_that_of_plain_draws(rng) -> None:
    w = world(rng, "full", 3, 4, 10)
    grad = gradients.distribution(*w, estimator=gradients.Conditional(4096), generator=rng)
    c = grad.covariance_matrix
    assert c.shape == (1, 3, 4, 4)
    ratio = c.diagonal(dim1=-2, dim2=-1) / grad.variance
    assert ((ratio - 1).abs() < 0.2).all()
    draws = grad.sample((20_000,), generator=rng) - grad.mean
    expected = torch.einsum("stbd,stbe->tbde", draws, draws) / 20_000
    scale = grad.variance.sqrt()
    error = (c - expected) / (scale[..., None] * scale[..., None, :])
    assert error.abs().max() < 0.2


@pytest.mark.parametrize("sobol", [True, False])
def test_the_given_generator_alone_decides(rng, sobol) -> None:
    w = world(rng, "kron", 3, 4, 10)
    state = torch.get_rng_state()
    c = gradients.Conditional(32, sobol=sobol)
    found = [estimates(w, c, 2)[0] for _ in range(2)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[0][1])
    assert torch.equal(torch.get_rng_state(), state)
    own = gradients.Conditional(32, sobol=sobol, generator=torch.Generator().manual_seed(1000))
    assert torch.equal(gradients.distribution(*w, estimator=own).mean, found[0][0])


def test_it_is_for_softmax_and_gaussian_posteriors(rng) -> None:
    with pytest.raises(errors.SettingError, match="samples must be an integer of at least 2"):
        gradients.Conditional(1)
    head = heads.Bernoulli(3, name="sick")
    h, y = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(errors.DtypeError, match=r"Bernoulli.*MonteCarlo"):
        gradients.distribution(
            head, priors.isotropic(head, 1.0), h, y, estimator=gradients.Conditional(8)
        )
    three = heads.Categorical(3, 3)
    samples = posteriors.Empirical(torch.zeros(2, 1, 12).double())
    with pytest.raises(errors.DtypeError, match=r"Empirical.*MonteCarlo"):
        gradients.distribution(three, samples, h, y.long(), estimator=gradients.Conditional(8))
    assert isinstance(gradients._dispatch.default_estimator(three, samples), gradients.MonteCarlo)


class Smoothed(heads.Categorical):
    """Label smoothing: no softmax minus one-hot any more."""

    def negative_log_prob(self, outputs, targets):
        even = -self.logits(outputs).log_softmax(-1).mean(-1)
        return 0.8 * super().negative_log_prob(outputs, targets) + 0.2 * even


class Hinge(heads.Categorical):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets).square()


@pytest.mark.parametrize("kind", [Smoothed, Hinge])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_subclass_with_a_loss_of_its_own_is_sampled(rng, kind, classes) -> None:
    """Formulas for softmax are not applied to it, neither by default nor on request."""
    head = kind(3, classes).double()
    p = priors.isotropic(head, 0.5)
    h, y = normal(rng, 4, 3), torch.randint(0, classes, (4,), generator=rng)
    state = rng.get_state()
    found = gradients.distribution(head, p, h, y, generator=rng)
    rng.set_state(state)
    plain = gradients.distribution(head, p, h, y, estimator=gradients.MonteCarlo(), generator=rng)
    assert torch.equal(found.mean, plain.mean)
    assert torch.equal(found.variance, plain.variance)
    for estimator in (gradients.Conditional(8), gradients.Quadrature()):
        with pytest.raises(errors.DtypeError, match=kind.__name__):
            gradients.distribution(head, p, h, y, estimator=estimator)
