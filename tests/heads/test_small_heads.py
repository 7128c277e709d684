"""Likelihoods, derivatives, targets, second-order inference and the engine, head by head."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from likelihoods import F64, NAMES, ONE, REAL, gaussian, log_density, make, normal, targets_of
from pyro.infer import MCMC, NUTS, Predictive

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, priors
from bayesagg_pyro.heads._log_gamma import log_gamma_ratio


@pytest.mark.parametrize("name", ONE)
def test_the_likelihood_is_scipys(rng, name) -> None:
    """In both of its forms: the loss and the distribution."""
    head = make(name)
    u, y = 2 * normal(rng, 7, 2), targets_of(rng, name, 7)
    expected = torch.tensor(
        [
            [log_density(name, np.float64(u[b, t].item()), float(y[b, t]), t) for t in (0, 1)]
            for b in range(7)
        ]
    )
    torch.testing.assert_close(-head.negative_log_prob(u, y), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(head.likelihood(u).log_prob(y), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("at", [-100.0, -10.0, 0.3, 10.0, 100.0])
def test_derivatives_are_those_of_the_loss_also_far_out(name, at) -> None:
    head = make(name, tasks=1)
    for y in (0, 1, 3):
        target = torch.tensor([[y]], dtype=F64 if name == "student" else torch.long)
        u = torch.tensor([[at]], dtype=F64, requires_grad=True)
        (slope,) = torch.autograd.grad(head.loss(u, target).sum(), u, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), u)
        first, curvature = head.nll_derivatives(u.detach(), target)
        assert first.isfinite().all()
        torch.testing.assert_close(first, slope.detach(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(head.loss_derivative(u.detach(), target), first)
        assert (curvature >= 0).all()
        if name != "student":
            torch.testing.assert_close(curvature, second, rtol=1e-5, atol=1e-9)


#: Relative and absolute. Terms such as y log α are up to 1,000, and torch's softplus leaves out
#: exp(−20) and less, of each count.
LIMITS = {torch.float32: (1e-5, 2e-4), F64: (1e-12, 40 * 2.1e-9)}


@pytest.mark.parametrize("dtype", LIMITS)
def test_counts_of_any_dispersion(dtype) -> None:
    """Down to Poisson's limit, where Γ(y + r) and Γ(r) differ in no digit of float32."""
    mp = pytest.importorskip("mpmath")
    dispersion = [10.0**k for k in range(-10, 4)]
    u = torch.tensor([-3.0, 0.0, 2.0, 5.0], dtype=dtype)[:, None, None].repeat(1, 4, 14)
    y = torch.tensor([0.0, 1.0, 5.0, 40.0], dtype=dtype)[:, None].expand(4, 14)
    head = heads.NegativeBinomial(1, 14, dispersion=dispersion)

    def exact(u: float, y: float, a: float) -> tuple[float, float]:
        r, mean = 1 / mp.mpf(a), mp.exp(u)
        p = mean / (r + mean)
        log = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1)
        log += y * mp.log(p) + r * mp.log1p(-p)
        return float(-log), float((mean - y) / (1 + a * mean))

    _compare(head, u.requires_grad_(), y, dispersion, exact)


@pytest.mark.parametrize("dtype", LIMITS)
def test_students_noise_of_any_degrees_of_freedom(dtype) -> None:
    """Up to the normal limit."""
    mp = pytest.importorskip("mpmath")
    df = [10.0**k for k in range(13)]
    u = torch.tensor([-30.0, -1.0, 0.0, 2.0], dtype=dtype)[:, None, None].repeat(1, 1, 13)
    head = heads.StudentT(1, 13, df=df, scale=2.0)

    def exact(u: float, y: float, df: float) -> tuple[float, float]:
        v, r = mp.mpf(df), mp.mpf(u - y) / 2
        log = mp.loggamma((v + 1) / 2) - mp.loggamma(v / 2) - mp.log(mp.pi * v) / 2 - mp.log(2)
        return float((v + 1) / 2 * mp.log1p(r**2 / v) - log), float((v + 1) * r / (v + r**2) / 2)

    _compare(head, u.requires_grad_(), torch.full((1, 13), 0.5, dtype=dtype), df, exact)


def _compare(head, u, y, setting, exact) -> None:
    """Values and slopes against exact(u, y, setting of the task)."""
    mp = pytest.importorskip("mpmath")
    loss = head.loss(u, y)
    (slope,) = torch.autograd.grad(loss.sum(), u)
    rows = zip(u.flatten().tolist(), y.expand_as(u).flatten().tolist(), strict=True)
    with mp.workdps(50):
        found = [exact(*row, setting[k % len(setting)]) for k, row in enumerate(rows)]
    values, slopes = torch.tensor(found, dtype=F64).T.reshape(2, *u.shape)
    rtol, atol = LIMITS[u.dtype]
    torch.testing.assert_close(loss.double(), values, rtol=rtol, atol=atol)
    for each in (slope, head.loss_derivative(u.detach(), y)):
        torch.testing.assert_close(each.double(), slopes, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (F64, 2e-11)])
def test_the_ratio_of_gammas_and_its_slopes(dtype, close) -> None:
    """Within the rounding of log Γ where Stirling's series begins, of 66 and of 2e5."""
    mp = pytest.importorskip("mpmath")
    x = (10.0 ** torch.linspace(-3, 12, 61, dtype=F64)).to(dtype)[:, None].requires_grad_()
    y = torch.tensor([0.0, 0.5, 1.0, 7.0, 300.0], dtype=dtype).requires_grad_()
    ratio = log_gamma_ratio(x, y)
    expected = torch.empty(3, *ratio.shape, dtype=F64)
    with mp.workdps(50):
        for (i, j), _ in np.ndenumerate(expected[0]):
            a, b = mp.mpf(x[i].item()), mp.mpf(y[j].item())
            expected[0, i, j] = float(mp.loggamma(a + b) - mp.loggamma(a))
            expected[1, i, j] = float(mp.digamma(a + b) - mp.digamma(a))
            expected[2, i, j] = float(mp.digamma(a + b))
    of_x, of_y = torch.autograd.grad(ratio.sum(), (x, y))
    torch.testing.assert_close(ratio.double(), expected[0], rtol=close, atol=close)
    sums = expected[1].sum(1, keepdim=True), expected[2].sum(0)
    for found, right in zip((of_x, of_y), sums, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=close, atol=close)


def test_students_curvature_is_fishers(rng) -> None:
    """E[slope²] over y, where the exact curvature is negative in the tails."""
    head = heads.StudentT(1, df=5.0, scale=2.0).double()
    y = torch.linspace(-400, 400, 800_001, dtype=F64)[:, None]
    zero = torch.zeros_like(y)
    p = head.likelihood(zero).log_prob(y).exp() * 1e-3
    slope, curvature = head.nll_derivatives(zero, y)
    assert abs((p * slope.square()).sum() - curvature[0, 0]) < 1e-6
    assert (curvature == curvature[0]).all()


def test_the_derivatives_of_the_heteroscedastic_loss_and_fishers_information(rng) -> None:
    head = heads.Heteroscedastic(2, 2).double()
    f, y = normal(rng, 5, 2, 2).requires_grad_(), normal(rng, 5, 2)
    (slope,) = torch.autograd.grad(head.loss(f, y).sum(), f)
    found, curvature = head.output_curvature(f.detach(), y)
    fisher = curvature.diagonal()
    torch.testing.assert_close(found, slope)
    drawn = head.likelihood(f.detach()).sample((400_000,))
    scores = head.loss_derivatives(f.detach().expand(400_000, -1, -1, -1), drawn)
    information = torch.einsum("sbtc,sbte->btce", scores, scores) / 400_000
    scale = fisher.sqrt()
    error = information / (scale[..., :, None] * scale[..., None, :]) - torch.eye(2)
    assert error.abs().max() < 0.05


def test_ordinal_probabilities_sum_to_one_and_follow_the_cut_points() -> None:
    for link in ("logit", "probit"):
        head = heads.Ordinal(1, 5, link=link).double()
        u = torch.tensor([[-100.0], [0.0], [3.0], [100.0]], dtype=F64)
        p = head.likelihood(u).probs
        torch.testing.assert_close(p.sum(-1), torch.ones(4, 1).double())
        torch.testing.assert_close(p[1, 0], torch.full((5,), 0.2).double(), atol=1e-6, rtol=0)
        assert p[0, 0, 0] == 1
        assert p[3, 0, 4] == 1


def test_ordinal_cut_points_learn_in_order_and_given_ones_stay(rng) -> None:
    head, fixed = heads.Ordinal(2, 4), heads.Ordinal(2, 4, cutpoints=[-1.0, 0.0, 1.0])
    x = torch.randn(200, 2, generator=rng)
    y = (x[:, :1] + 0.1 > torch.tensor([-2.0, 0.0, 0.3])).sum(1)  # gaps of 2 and 0.3
    for h in (head, fixed):
        optimiser = torch.optim.Adam(h.parameters(), 0.1)
        for _ in range(60):
            optimiser.zero_grad()
            h.loss(h(x), y[:, None]).mean().backward()
            optimiser.step()
    theta = head.cutpoints[0]
    assert (theta.diff() > 0).all()
    assert theta[1] - theta[0] > 2 * (theta[2] - theta[1])
    torch.testing.assert_close(fixed.cutpoints[0].double(), torch.tensor([-1.0, 0.0, 1.0]).double())
    again = heads.Ordinal(2, 4)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.cutpoints, head.cutpoints)


@pytest.mark.parametrize(
    ("head", "bad", "says"),
    [
        (heads.Poisson(2), torch.tensor([[1.0], [-1.0]]), "-1.0; counts are 0, 1, 2"),
        (heads.Poisson(2), torch.tensor([[1.0], [0.5]]), "task 0, example 1, is 0.5"),
        (heads.NegativeBinomial(2, dispersion=1.0), torch.tensor([[0], [-3]]), "-3; counts"),
        (heads.Ordinal(2, 3), torch.tensor([[0], [3]]), "classes are 0 to 2"),
        (heads.Ordinal(2, 3), torch.tensor([[0], [-1]]), "give a mask"),
    ],
)
def test_bad_targets_are_named(head, bad, says) -> None:
    with pytest.raises(errors.SettingError, match=says):
        head.parse_targets(bad, 2)
    assert not head.valid(head.parse_targets(bad, 2, validate=False))
    good = torch.zeros_like(bad)
    assert head.valid(head.parse_targets(good, 2))
    head.parse_targets((bad, bad == bad[0]), 2)  # not observed: no matter


def test_bad_targets_of_the_wrong_kind() -> None:
    with pytest.raises(errors.NonFiniteError, match="missing='nan'"):
        heads.Poisson(2).parse_targets(torch.tensor([[1.0], [torch.nan]]), 2)
    with pytest.raises(errors.DtypeError, match="counts"):
        heads.Poisson(2).parse_targets(torch.tensor([[True], [False]]), 2)
    with pytest.raises(errors.DtypeError, match="integer class"):
        heads.Ordinal(2, 3).parse_targets(torch.zeros(2, 1), 2)


@pytest.mark.parametrize(
    "make_bad",
    [
        lambda: heads.StudentT(2, df=0.0),
        lambda: heads.StudentT(2, scale=-1.0),
        lambda: heads.NegativeBinomial(2, dispersion=float("inf")),
        lambda: heads.NegativeBinomial(2, 2, dispersion=[1.0, 2.0, 3.0]),
        lambda: heads.Ordinal(2, 1),
        lambda: heads.Ordinal(2, 3, cutpoints=[1.0, 0.0]),
        lambda: heads.Ordinal(2, 3, cutpoints=[1.0]),
        lambda: heads.Ordinal(2, 3, link="cauchit"),
    ],
)
def test_bad_settings(make_bad) -> None:
    with pytest.raises((errors.SettingError, errors.ShapeError)):
        make_bad()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_second_order_schemes(rng, name, structure) -> None:
    """The MAP has no gradient, and the full curvature is that of autograd where it is exact.

    With holes and example weights, and fewer examples than weights for the second task.
    """
    head = make(name)
    h, y = normal(rng, 12, 3), targets_of(rng, name, 12)
    mask = torch.ones(12, 2, dtype=torch.bool)
    mask[2:, 1] = False
    weight = 0.5 + torch.rand(12, 2, generator=rng, dtype=F64)
    given = (y, mask, weight)
    prior = priors.isotropic(head, 0.5)
    posterior = inference.Laplace(structure, max_steps=400).infer(head, h, given, prior)
    assert posterior.info.converged.all()

    def potential(w):
        outputs = head(h, w)
        nll = (head.negative_log_prob(outputs, y) * mask * weight).sum()
        return nll + w.square().sum()  # 1 / (2 · 0.5)

    w = posterior.mean.clone()
    slope = torch.autograd.functional.jacobian(potential, w)
    assert slope.abs().max() < 1e-6
    exact = name not in REAL and structure == "full"
    if exact:
        hessian = torch.autograd.functional.hessian(potential, w)
        for t in (0, 1):
            expected = torch.linalg.inv(hessian[t, :, t])
            found = posterior.covariance_matrix[t]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    one = inference.TaylorGGN(structure).infer(head, h, given, prior)
    assert one.mean.isfinite().all()
    assert (one.variance > 0).all()


def test_heteroscedastic_precision_is_fishers(rng) -> None:
    head = make("heteroscedastic")
    h, y = normal(rng, 9, 3), normal(rng, 9, 2)
    posterior = inference.Laplace().infer(head, h, y, priors.isotropic(head, 1.0))
    design = head.design(h)
    s = head(h, posterior.mean)[..., 1]
    for t in (0, 1):
        upper = design.T @ ((-s[:, t]).exp()[:, None] * design)
        expected = torch.block_diag(upper, 0.5 * design.T @ design) + torch.eye(8)
        torch.testing.assert_close(posterior.precision_matrix[t], expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_trains_with_holes_and_weights(rng, name) -> None:
    """Finite updates; an example without any label gives none; same update however it is hidden."""
    updates = []
    for filler in (0, 1):
        torch.manual_seed(3)
        head = make(name)
        mtl = ba.BayesAgg({"y": head}).double()
        backbone = torch.nn.Linear(4, 3).double()
        g = torch.Generator().manual_seed(5)
        x, y = normal(g, 10, 4), targets_of(g, name, 10)
        mask = torch.ones(10, 2, dtype=torch.bool)
        mask[:4, 0] = False
        mask[0] = False
        y = torch.where(mask, y, torch.full_like(y, filler))
        weight = 0.5 + torch.rand(10, generator=g, dtype=F64)
        mtl.backward(backbone(x), {"y": (y, mask, weight)})
        mtl.update_prior()
        mtl.start_bayes()
        features = backbone(x)
        features.retain_grad()
        losses = mtl.backward(features, {"y": (y, mask, weight)})
        assert losses["y"].isfinite().all()
        assert features.grad.isfinite().all()
        assert (features.grad[0] == 0).all()
        assert (features.grad[5] != 0).any()
        updates.append(features.grad)
        predicted = mtl.predictive(backbone(x))["y"]
        assert predicted.batch_shape == (10, 2)
    torch.testing.assert_close(updates[0], updates[1])


def test_nan_is_missing_for_real_targets_and_counts(rng) -> None:
    for head in (
        heads.StudentT(2, missing="nan"),
        heads.Poisson(2, missing="nan"),
        heads.Heteroscedastic(2, missing="nan"),
    ):
        parsed = head.parse_targets(torch.tensor([[1.0], [torch.nan]]), 2)
        assert parsed.mask.tolist() == [[True], [False]]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_pyro_predictive_shapes_and_frequencies(rng, name, parallel) -> None:
    """Draws at fixed weights have the likelihood's mean."""
    head = make(name)
    h, draws = normal(rng, 4, 3), 2000 if parallel else 100
    weight = 0.3 * normal(rng, 2, head.weight_size)
    samples = {"head.weight": weight.expand(draws, -1, -1)}
    got = Predictive(head.model, samples, parallel=parallel)(h)["head.targets"]
    assert got.shape == (draws, 4, 2)
    law = head.likelihood(head(h, weight))
    if name.startswith("ordinal"):
        labels = torch.arange(4).double()
        mean = law.probs @ labels
        variance = law.probs @ labels.square() - mean.square()
    else:
        mean, variance = law.mean, law.variance
    error = (variance / draws).sqrt()
    assert ((got.double().mean(0) - mean).abs() < 6 * error).all()


def test_nuts_takes_the_model_and_agrees_with_laplace(rng) -> None:
    head = heads.Poisson(1).double()
    h = normal(rng, 150, 1)
    y = torch.poisson((0.5 * h + 1).exp(), generator=rng)
    prior = priors.isotropic(head, 1.0)
    laplace = inference.Laplace().infer(head, h, y, prior)
    pyro.set_rng_seed(1)
    mcmc = MCMC(NUTS(head.model), num_samples=100, warmup_steps=40, disable_progbar=True)
    mcmc.run(h, y, prior=prior)
    draws = mcmc.get_samples()["head.weight"]
    assert ((draws.mean(0) - laplace.mean).abs() < 0.6 * laplace.variance.sqrt()).all()


@pytest.mark.parametrize("name", NAMES)
def test_moments_agree_with_many_draws(rng, name) -> None:
    """Chosen by type against plain Monte Carlo through autograd, with the full covariance."""
    head = make(name)
    h, y = normal(rng, 3, 3), targets_of(rng, name, 3)
    posterior = gaussian(rng, head, scale=0.25)
    found = gradients.distribution(head, posterior, h, y)
    draws = 40_000
    sampled = gradients.distribution(
        head, posterior, h, y, estimator=gradients.MonteCarlo(draws, generator=rng)
    )
    std = found.variance.sqrt()
    assert ((found.mean - sampled.mean).abs() < 6 * std / draws**0.5).all()
    assert (found.variance / sampled.variance - 1).abs().max() < 0.15
    diagonal = found.covariance_matrix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, found.variance)
    correlation = found.covariance_matrix / (std[..., :, None] * std[..., None, :])
    other = sampled.covariance_matrix / (std[..., :, None] * std[..., None, :])
    assert (correlation - other).abs().max() < 0.15
