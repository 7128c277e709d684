"""Moments and predictives of a head that changes its base's model are those of the change."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from overridden import CASES, F64, Setting, make, seed
from torch import Tensor, nn

from bayesagg_pyro import errors, gradients, heads, inference, posteriors, predictive, priors


@pytest.mark.parametrize(("name", "change", "where"), CASES)
def test_moments(name: str, change: str, where: str) -> None:
    case = make(name, change, where)
    posterior = _posterior(case.plain)
    for estimator in (
        gradients.MonteCarlo(64),  # the same draws
        gradients.PlugIn(gradients.MonteCarlo(64)),
        gradients.Exact(),
        gradients.Quadrature(),
        gradients.Conditional(64),
        None,
    ):
        grad, refusal = _attempted(case, posterior, estimator)
        if grad is None:
            assert isinstance(
                estimator, gradients.Exact | gradients.Quadrature | gradients.Conditional
            )
            assert type(case.head).__name__ in refusal
            continue
        chosen = estimator or gradients._dispatch.default_estimator(case.head, posterior)
        right = gradients.MonteCarlo() if isinstance(chosen, gradients.MonteCarlo) else None
        exact = isinstance(chosen, gradients.MonteCarlo | gradients.PlugIn)
        mean, variance = case.moments(posterior, estimator if estimator and exact else right)
        # Rules of 32 nodes on derivatives of other width; equal draws leave rounding alone.
        sampled = isinstance(chosen, gradients.Conditional) and estimator is None
        rtol = 1e-8 if exact else 0.1 if sampled else 1e-2
        torch.testing.assert_close(grad.mean, mean, rtol=rtol, atol=rtol * 0.1, msg=repr(chosen))
        torch.testing.assert_close(grad.variance, variance, rtol=rtol, atol=rtol * 0.1)


def _attempted(case: Setting, posterior: Any, estimator: Any) -> tuple[Any, str]:
    try:
        grad = gradients.distribution(
            case.head,
            posterior,
            case.features,
            case.targets,
            estimator=estimator,
            generator=seed(),
        )
    except (errors.BayesAggError, NotImplementedError) as error:
        return None, str(error)
    return grad, ""


def _posterior(head: heads.Head) -> posteriors.Gaussian:
    blocks, size = head.point().shape
    root = torch.randn(blocks, size, size, generator=seed(3), dtype=F64)
    precision = root @ root.mT + 20 * torch.eye(size, dtype=F64)
    mean = 0.5 * torch.randn(blocks, size, generator=seed(4), dtype=F64)
    return posteriors.Gaussian(mean, precision).replace(outputs_per_task=head.outputs_per_task)


@pytest.mark.parametrize(("name", "change", "where"), CASES)
def test_predictions(name: str, change: str, where: str) -> None:
    """In closed form as the plain head, or by the same draws of the weights."""
    case = make(name, change, where)
    laws = _laws(case.plain)
    double = change in ("forward", "design", "likelihood")
    right = _expected(name, "forward" if double else "loss")
    for at, posterior in enumerate(laws):
        found = _said(case.head, case.features, posterior, case.targets)
        for numbers in zip(found, *right[at:], strict=True):
            apart = [((numbers[0] - x) / (1 + x.abs())).abs().max() for x in numbers[1:]]
            assert min(apart) < 1e-6, apart
    exact = laws[0].mean
    point = case.head(case.features, exact)
    torch.testing.assert_close(
        point, (2 if change in ("forward", "design") else 1) * case.plain(case.features, exact)
    )


def _laws(plain: heads.Head) -> tuple[posteriors.Posterior, ...]:
    exact = _posterior(plain)
    return exact, posteriors.Empirical(exact.sample((512,), generator=seed(0)))


@functools.cache
def _expected(name: str, change: str) -> list[list[Tensor]]:
    """What the plain head says by both laws, where several changes come to the same."""
    case = make(name, change, "class")
    return [_said(case.plain, case.predicted, law, case.targets) for law in _laws(case.plain)]


def _said(
    head: heads.Head, features: Tensor, posterior: posteriors.Posterior, targets: Tensor
) -> list[Tensor]:
    law = head.predictive(features, posterior)
    parts = predictive.uncertainty(head, posterior, features)
    mean = law.probs if head.target_kind == "class" else law.mean
    return [mean, law.log_prob(targets), parts.epistemic, parts.aleatoric]


def test_an_embedded_head_whose_code_no_transform_can_run() -> None:
    """Outputs 2u and target y: the loss 4 (u − y/2)², the likelihood of y/2 with half the noise."""
    pytest.importorskip("gpytorch")

    class Twice(heads.GaussianProcess):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return 2 * super().forward(features, weight)

    h, y = (torch.randn(9, k, generator=seed(k), dtype=F64) for k in (3, 2))
    head, plain = (
        kind(3, 2, inducing=h[:4].clone(), noise_scale=noise).double()
        for kind, noise in ((Twice, 1.0), (heads.GaussianProcess, 0.5))
    )
    prior = priors.isotropic(plain, 1.0)
    found = inference.Laplace().infer(head, h, y, prior)
    exact = inference.Conjugate().infer(plain, h, y / 2, prior)
    torch.testing.assert_close(found.mean, exact.mean)
    shared = exact.covariance_matrix.expand_as(found.covariance_matrix)
    torch.testing.assert_close(found.covariance_matrix, shared)
    few = gradients.MonteCarlo(8)
    grad, right = (
        gradients.distribution(one, exact, h, at, estimator=few, generator=seed())
        for one, at in ((head, y), (plain, y / 2))
    )
    torch.testing.assert_close(grad.mean, 4 * right.mean)
    torch.testing.assert_close(grad.variance, 16 * right.variance)


@pytest.mark.parametrize("kind", ["plain", "overridden", "by hand"])
def test_sampled_moments_in_inference_mode(kind: str) -> None:
    """Tensors made there can take part in no gradient; copies of them can."""

    class Twice(heads.Gaussian):
        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            if kind == "by hand" and float(features.detach().sum()) > 1e9:  # stops transforms
                raise AssertionError
            return 2 * super().forward(features, weight)

    head = heads.Gaussian(3, noise_scale=0.5) if kind == "plain" else Twice(3)
    scale = 1.0 if kind == "plain" else 4.0
    plain = heads.Gaussian(3, noise_scale=0.5)
    h, y = (torch.randn(9, k, generator=seed(k), dtype=F64) for k in (3, 1))
    mask = y > 0
    posterior = priors.isotropic(plain, 1.0)
    few = gradients.MonteCarlo(8)
    targets = y if kind == "plain" else y / 2
    right = gradients.distribution(
        plain, posterior, h, (targets, mask), estimator=few, generator=seed()
    )
    with torch.inference_mode():
        inside = h.clone(), (y.clone(), mask.clone())
        grad = gradients.distribution(head, posterior, *inside, estimator=few, generator=seed())
    torch.testing.assert_close(grad.mean, scale * right.mean)
    torch.testing.assert_close(grad.variance, scale**2 * right.variance)
    gradients.distribution(head, posterior, h, (y, mask), estimator=few, generator=seed())
    assert not h.requires_grad


def test_sampled_gradients_hold_no_graph_of_the_heads_parameters() -> None:
    class Offset(heads.Gaussian):
        def __init__(self) -> None:
            super().__init__(3)
            self.offset = nn.Parameter(torch.ones(()))

        def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
            return super().forward(features, weight) * self.offset

    head = Offset()
    h, y = (torch.randn(9, k, generator=seed(k), dtype=F64) for k in (3, 1))
    prior = priors.isotropic(head, 1.0)
    grad = gradients.distribution(head, prior, h, y, estimator=gradients.MonteCarlo(8))
    assert not grad.mean.requires_grad
    assert not grad.variance.requires_grad
    assert not grad.sample((2,)).requires_grad
