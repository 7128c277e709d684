"""Conjugate posteriors of nearly collinear features, against 60 digits."""

from __future__ import annotations

import pytest
import torch

from bayesagg_pyro import heads, inference, linalg, priors

mp = pytest.importorskip("mpmath")
F64 = torch.float64
NOISE = 0.125


def collinear(rng, condition: float, n: int = 40, d: int = 6, size: float = 1e3):
    """Features whose singular values fall from `size` to `size` / condition, and targets."""
    u, _ = torch.linalg.qr(torch.randn(n, d, generator=rng, dtype=F64))
    v, _ = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=F64))
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), d, dtype=F64)
    h = size * (u * values) @ v.T
    w = torch.randn(d, 2, generator=rng, dtype=F64)
    return h, h @ w + NOISE * torch.randn(n, 2, generator=rng, dtype=F64)


def exact(h, y, variance: float):
    """Mean and variances of one task with prior N(0, variance I)."""
    with mp.workdps(60):
        x = mp.matrix(h.tolist())
        precision = x.T * x / mp.mpf(NOISE) ** 2 + mp.eye(h.shape[1]) / mp.mpf(variance)
        s = precision**-1
        mean = s * (x.T * mp.matrix(y.tolist())) / mp.mpf(NOISE) ** 2
        return (
            torch.tensor([float(m) for m in mean], dtype=F64),
            torch.tensor([float(s[i, i]) for i in range(h.shape[1])], dtype=F64),
        )


@pytest.mark.parametrize("condition", [1e6, 1e8, 1e11, 1e14])
@pytest.mark.parametrize("variance", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("masked", [False, True])
def test_mean_and_variances(rng, condition, variance, masked) -> None:
    h, y = collinear(rng, condition)
    head = heads.Gaussian(6, 2, bias=False, noise_scale=NOISE).double()
    mask = torch.rand(40, 2, generator=rng) < 0.8 if masked else torch.ones(40, 2).bool()
    targets = (y, mask) if masked else y
    p = inference.Conjugate().infer(head, h, targets, priors.isotropic(head, variance))
    assert (p.info.jitter == 0).all()
    for t in range(2):
        mean, variances = exact(h[mask[:, t]], y[mask[:, t], t], variance)
        assert ((p.mean[t] - mean).abs() / variances.sqrt()).max() < 1e-6
        assert ((p.mean[t] - mean).norm() / mean.norm()) < 1e-6
        assert (p.variance[t] / variances - 1).abs().max() < 1e-6
    if condition >= 1e8 and variance == 1e6:
        assert p.info.square_root.all()
        assert (p.info.rounding < 1e-8).all()


@pytest.mark.parametrize("masked", [False, True])
def test_labels_and_weights_common_to_all_tasks(rng, masked) -> None:
    h, y = collinear(rng, 1e8)
    head = heads.Gaussian(6, 2, bias=False, noise_scale=NOISE).double()
    mask, weight = torch.rand(40, generator=rng) < 0.8, torch.rand(40, generator=rng).double()
    common = (y, mask if masked else None, weight)
    apart = (y, mask[:, None].repeat(1, 2) if masked else None, weight[:, None].repeat(1, 2))
    prior = priors.isotropic(head, 1e6)
    found, each = (inference.Conjugate().infer(head, h, t, prior) for t in (common, apart))
    assert found.info.square_root.all()
    assert len(found.precision_tril) == 1
    torch.testing.assert_close(found.mean, each.mean)
    torch.testing.assert_close(found.variance, each.variance)


def test_a_dense_prior_weights_and_noise_of_each_task(rng) -> None:
    """The square root gives what Cholesky does where both are exact."""
    h, y = torch.randn(30, 4, generator=rng, dtype=F64), torch.randn(30, 3, generator=rng).double()
    prior = inference.Conjugate().infer(
        heads.Gaussian(4, 3, bias=False, noise_scale=[0.5, 1.0, 2.0]).double(),
        torch.randn(9, 4, generator=rng, dtype=F64),
        torch.randn(9, 3, generator=rng, dtype=F64),
        priors.isotropic(heads.Gaussian(4, 3, bias=False).double(), [0.1, 1.0, 10.0]),
    )
    weight = torch.rand(30, 3, generator=rng, dtype=F64)
    tril, step = linalg.square_root(prior.precision_tril, h, weight.sqrt(), y)
    total = prior.precision_matrix + linalg.gram(h, weight)
    torch.testing.assert_close(tril, torch.linalg.cholesky(total))
    expected = torch.linalg.solve(total, ((weight * y).mT @ h)[..., None])[..., 0]
    torch.testing.assert_close(step, expected)


def test_blocks_of_rows_change_nothing(rng, monkeypatch) -> None:
    h, y = torch.randn(50, 4, generator=rng, dtype=F64), torch.randn(50, 2, generator=rng).double()
    prior, weight = torch.eye(4, dtype=F64)[None], torch.ones(50, 1, dtype=F64)
    whole = linalg.square_root(prior, h, weight, y)
    monkeypatch.setattr(linalg, "BLOCK", 1)
    for a, b in zip(whole, linalg.square_root(prior, h, weight, y), strict=True):
        torch.testing.assert_close(a, b)


def test_precisions_that_no_factorisation_takes(rng) -> None:
    """Twice the same feature under a prior of no weight: Λ rounds to a singular matrix."""
    h = 1e6 * torch.randn(20, 1, generator=rng, dtype=F64).expand(-1, 2)
    y = 3.0 * h[:, :1] + NOISE * torch.randn(20, 1, generator=rng, dtype=F64)
    head = heads.Gaussian(2, bias=False, noise_scale=NOISE).double()
    p = inference.Conjugate().infer(head, h, y, priors.isotropic(head, 1e4))
    mean, variances = exact(h, y[:, 0], 1e4)
    assert p.info.square_root.all()
    assert ((p.mean[0] - mean).abs() / variances.sqrt()).max() < 1e-6
    torch.testing.assert_close(p.variance[0], variances, rtol=1e-5, atol=0)
    draws = p.expand((3, 1)).scale_tril  # as Pyro's plates ask for
    torch.testing.assert_close((draws @ draws.mT)[0, 0], p.covariance_matrix[0], rtol=1e-6, atol=0)


def test_sums_say_what_they_lost(rng) -> None:
    h, y = collinear(rng, 1e11)
    head = heads.Gaussian(6, 2, bias=False, noise_scale=NOISE, name="depths").double()
    scheme = inference.Conjugate()
    sums = scheme.statistics(head, inference.Storage())
    sums.add(h, head.parse_targets(y, len(h)))
    with pytest.warns(RuntimeWarning, match="depths.*off by"):
        p = sums.posterior(priors.isotropic(head, 1e4))
    _mean, variances = exact(h, y[:, 0], 1e4)
    lost = (p.variance[0] / variances - 1).abs().max()
    assert lost < 300 * p.info.rounding.max()  # a bound but for the slack of the condition's own
    assert p.info.square_root is None
    good = sums.posterior(priors.isotropic(head, 1e-3))
    assert (good.info.rounding < 1e-6).all()
