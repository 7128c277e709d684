"""Gaussian-process heads: against the linear head, GPyTorch and dense formulas."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, gradients, heads, inference, priors

D = 3


def linear_kernel(variance: float = 1.7) -> nn.Module:
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = variance
    return kernel


def rbf(scale: float = 1.3, length: float = 1.5) -> nn.Module:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = scale
    kernel.base_kernel.lengthscale = length
    return kernel


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def dense(kernel: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return kernel(a, b).to_dense().detach()


@pytest.mark.parametrize("count", [D, D + 1, 12])
def test_a_linear_kernel_is_the_gaussian_head(count: int, rng: torch.Generator) -> None:
    """Posterior predictions, gradient moments and direction, for D inducing points or more."""
    noise = [0.5, 1.0]
    process = heads.GaussianProcess(
        D, tasks=2, inducing=normal(rng, count, D), kernel=linear_kernel(1.7), noise_scale=noise
    )
    plain = heads.Gaussian(D, tasks=2, noise_scale=noise)
    h, y, new = normal(rng, 20, D), normal(rng, 20, 2), normal(rng, 7, D)
    mask = torch.rand(20, 2, generator=rng) > 0.3
    scheme, power = inference.Conjugate(), aggregation.PrecisionWeighted.paper(power=0.7)
    a = scheme.infer(process, h, (y, mask), priors.isotropic(process, 1.0))
    b = scheme.infer(plain, h, (y, mask), priors.isotropic(plain, 1.7))
    p, q = process.predictive(new, a), plain.predictive(new, b)
    close(p.mean, q.mean)
    close(p.variance, q.variance)
    one = gradients.distribution(process, a, h, (y, mask))
    two = gradients.distribution(plain, b, h, (y, mask))
    close(one.mean, two.mean)
    close(one.variance, two.variance)
    close(one.covariance_matrix, two.covariance_matrix)
    close(power(one), power(two))


def test_a_linear_kernel_with_other_likelihoods(rng: torch.Generator) -> None:
    process = heads.Bernoulli(D, tasks=2, bias=False).embed(
        heads.InducingPoints(D, normal(rng, 5, D), linear_kernel(1.0))
    )
    plain = heads.Bernoulli(D, tasks=2, bias=False)
    h, y = normal(rng, 20, D), (normal(rng, 20, 2) > 0).double()
    scheme = inference.Laplace()
    a = scheme.infer(process, h, y, priors.isotropic(process, 1.0))
    b = scheme.infer(plain, h, y, priors.isotropic(plain, 1.0))
    one, two = gradients.distribution(process, a, h, y), gradients.distribution(plain, b, h, y)
    close(one.mean, two.mean)
    close(one.variance, two.variance)
    close(process.predictive(h, a).probs, plain.predictive(h, b).probs)


def test_points_at_the_data_give_the_exact_process(rng: torch.Generator) -> None:
    """Z = H: the posterior of the full GP, in closed form."""
    h, y, new = normal(rng, 12, D), normal(rng, 12, 1), normal(rng, 6, D)
    kernel = rbf()
    head = heads.GaussianProcess(D, inducing=h, kernel=kernel, noise_scale=0.4)
    posterior = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    noisy = dense(kernel, h, h) + 0.16 * torch.eye(12)
    gain = dense(kernel, new, h) @ torch.linalg.inv(noisy)
    p = head.predictive(new, posterior)
    close(p.mean, gain @ y)
    variance = (dense(kernel, new, new) - gain @ dense(kernel, h, new)).diagonal() + 0.16
    close(p.variance[:, 0], variance)
    evidence = torch.distributions.MultivariateNormal(0 * y[:, 0], noisy).log_prob(y[:, 0])
    close(head.log_evidence_bound(h, y)[0].detach(), evidence)


def test_fewer_points_give_the_deterministic_training_conditional(rng: torch.Generator) -> None:
    h, y, new, z = normal(rng, 30, D), normal(rng, 30, 1), normal(rng, 6, D), normal(rng, 8, D)
    kernel = rbf()
    head = heads.GaussianProcess(D, inducing=z, kernel=kernel, noise_scale=0.4)
    posterior = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    kzz, kzh, kzn = (dense(kernel, z, x) for x in (z, h, new))
    sigma = torch.linalg.inv(kzz + kzh @ kzh.T / 0.16)
    p = head.predictive(new, posterior)
    close(p.mean, kzn.T @ sigma @ kzh @ y / 0.16)
    q = (kzn * torch.linalg.solve(kzz, kzn)).sum(0)
    variance = 1.3 - q + (kzn * (sigma @ kzn)).sum(0) + 0.16
    close(p.variance[:, 0], variance)
    qhh = kzh.T @ torch.linalg.solve(kzz, kzh)
    bound = (
        torch.distributions.MultivariateNormal(
            torch.zeros(30).double(), qhh + 0.16 * torch.eye(30)
        ).log_prob(y[:, 0])
        - (1.3 - qhh.diagonal()).sum() / 0.32
    )
    close(head.log_evidence_bound(h, y)[0].detach(), bound)


@pytest.mark.parametrize("deep", [False, True])
def test_moments_match_a_large_sample(deep: bool, rng: torch.Generator) -> None:
    network = nn.Sequential(nn.Linear(D, 2), nn.Tanh()).double() if deep else None
    head = heads.GaussianProcess(
        D,
        tasks=2,
        inducing=normal(rng, 6, D),
        kernel=rbf(),
        deep=network,
        bias=True,
        noise_scale=0.5,
    )
    h, y = normal(rng, 4, D), normal(rng, 4, 2)
    posterior = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1.0))
    exact = gradients.distribution(head, posterior, h, y)
    draws = 30_000
    leaf = h.clone().requires_grad_()
    weight = posterior.sample((draws,), generator=rng)
    outputs = head(leaf, weight)  # [S, B, tasks]
    # ∂ℓ/∂h = 2 (f − y) ∂f/∂h, and ∂f/∂h = Σ_m w_m ∂φ_m/∂h, by autograd one φ_m after the other
    phi = head.inducing(leaf)
    jacobian = torch.stack(
        [torch.autograd.grad(phi[:, m].sum(), leaf, retain_graph=True)[0] for m in range(6)], 1
    )
    slope = torch.einsum("stm,bmd->stbd", weight[..., :6], jacobian)
    sample = 2 * (outputs - y).detach().mT[..., None] * slope
    std = sample.std(0)
    assert ((exact.mean - sample.mean(0)).abs() < 5 * std / draws**0.5).all()
    torch.testing.assert_close(exact.variance, sample.var(0), rtol=0.1, atol=0)
    drawn = exact.sample((3,), generator=torch.Generator().manual_seed(1))
    again = posterior.sample((3,), generator=torch.Generator().manual_seed(1))
    for found, w in zip(drawn, again, strict=True):
        loss = head.loss(head(leaf, w), y)
        for t in range(2):
            (expected,) = torch.autograd.grad(loss[:, t].sum(), leaf, retain_graph=True)
            torch.testing.assert_close(found[t], expected)


def test_whitening_needs_no_jitter_for_repeated_points(rng: torch.Generator) -> None:
    z = normal(rng, 4, D)
    once = heads.GaussianProcess(D, inducing=z, kernel=rbf(), noise_scale=0.3)
    twice = heads.GaussianProcess(
        D, inducing=torch.cat([z, z, z + 1e-9]), kernel=rbf(), noise_scale=0.3
    )
    h, y = normal(rng, 10, D), normal(rng, 10, 1)
    scheme = inference.Conjugate()
    p, q = (
        head.predictive(h, scheme.infer(head, h, y, priors.isotropic(head, 1.0)))
        for head in (once, twice)
    )
    torch.testing.assert_close(p.mean, q.mean)
    close(p.variance, q.variance)


def test_derivatives_of_the_whitening(rng: torch.Generator) -> None:
    """Also with equal eigenvalues, where eigenvectors have no derivative."""
    from bayesagg_pyro.heads._inducing import inverse_root

    root = normal(rng, 4, 4)
    spd = root @ root.T + 0.5 * torch.eye(4)
    for matrix in (spd, torch.eye(4, dtype=torch.float64)):
        torch.autograd.gradcheck(lambda k: inverse_root(k, 1e-8), matrix.requires_grad_())
    low = normal(rng, 4, 2).requires_grad_()  # rank 2 of 4
    torch.autograd.gradcheck(lambda r: inverse_root(r @ r.T, 1e-8), low, atol=1e-4)
    fixed = inverse_root(spd.detach(), 1e-8)
    torch.testing.assert_close(fixed @ spd.detach() @ fixed, torch.eye(4, dtype=torch.float64))


def test_points_are_placed_among_the_features(rng: torch.Generator) -> None:
    centres = torch.tensor([[0.0, 0, 0], [10, 0, 0], [0, 10, 0]]).double()
    h = (centres[:, None] + 0.1 * normal(rng, 3, 20, D)).flatten(0, 1)
    head = heads.GaussianProcess(D, inducing=3).double()
    with pytest.raises(errors.StateError, match="place"):
        head(h)
    mtl = ba.BayesAgg({"energy": head})
    with pytest.raises(errors.StateError, match=r"head 'energy': .* no place yet: call place"):
        mtl.collect(h, {"energy": h[:, 0]})
    for seed in range(20):  # k-means finds the clusters from most starts
        head.place(h, generator=torch.Generator().manual_seed(seed))
        if (torch.cdist(head.inducing.points, centres).amin(0) < 0.2).all():
            break
    assert (torch.cdist(head.inducing.points, centres).amin(0) < 0.2).all()
    assert 9 < head.inducing.kernel.base_kernel.lengthscale.item() < 15
    with pytest.raises(errors.ShapeError, match="cannot be placed among 2"):
        head.place(h[:2])
    with pytest.raises(errors.ShapeError, match="must be"):
        head.place(h[:, :2])
    before = head.inducing.points.clone()
    with pytest.raises(errors.NonFiniteError, match="NaN or infinite"):
        head.place(h / 0)
    assert torch.equal(head.inducing.points, before)
    head.place((1000 + h).repeat(90, 1).half())  # whose sums are no numbers in half precision
    assert (head.inducing.points.mean() - 1000).abs() < 20
    other = heads.GaussianProcess(D, inducing=3).double()
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(h), head(h))
    assert torch.equal(copy.deepcopy(head)(h), head(h))


def test_what_learns_is_what_was_asked_for(rng: torch.Generator) -> None:
    fixed = heads.GaussianProcess(D, inducing=normal(rng, 4, D))
    learned = heads.GaussianProcess(D, inducing=normal(rng, 4, D), learn_points=True)
    names = {name for name, _ in fixed.named_parameters()}
    assert names == {
        "weight",
        "embedding.kernel.raw_outputscale",
        "embedding.kernel.base_kernel.raw_lengthscale",
    }
    assert {n for n, _ in learned.named_parameters()} == names | {"embedding.points"}
    h, y = normal(rng, 10, D), normal(rng, 10, 1)
    learned.log_evidence_bound(h, y).sum().backward()
    for name, p in learned.named_parameters():
        if name != "weight":
            assert p.grad is not None
            assert (p.grad != 0).any()


def test_hyperparameters_are_fitted_through_the_bound(
    rng: torch.Generator,
) -> None:
    h = 4 * torch.rand(40, 1, generator=rng, dtype=torch.float64)
    y = (2 * h).sin()
    head = heads.GaussianProcess(1, inducing=12, noise_scale=0.1)
    head.place(h, generator=rng)
    optimizer = torch.optim.Adam(head.inducing.parameters(), lr=0.1)
    first = head.log_evidence_bound(h, y).item()
    for _ in range(60):
        optimizer.zero_grad()
        (-head.log_evidence_bound(h, y).sum()).backward()
        optimizer.step()
    assert head.log_evidence_bound(h, y).item() > first + 10
    mask = torch.zeros(40, 1, dtype=torch.bool)
    torch.testing.assert_close(
        head.log_evidence_bound(h, (y, mask)),
        torch.zeros(1, dtype=torch.float64),
        atol=1e-12,
        rtol=0,
    )


def test_arguments_outside_their_range() -> None:
    with pytest.raises(errors.SettingError, match="points must be an integer of at least 1"):
        heads.InducingPoints(D, 0)
    with pytest.raises(errors.ShapeError, match=r"\[M, 3\]"):
        heads.InducingPoints(D, torch.zeros(4, 2))
    with pytest.raises(errors.SettingError, match="tolerance"):
        heads.InducingPoints(D, 4, tolerance=0.0)
    with pytest.raises(errors.SettingError, match="random"):
        heads.InducingPoints(D, 4, deep=nn.Sequential(nn.Linear(D, 2), nn.Dropout(0.1)))
