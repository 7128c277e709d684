"""Last-layer posteriors equal those of laplace-torch, an independent implementation."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from dense import F64, close, normal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesagg_pyro import heads, inference, priors

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:torch.jit"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit"),
]


@pytest.fixture
def laplace() -> Any:
    """The package, with float64 as torch's default dtype as it needs for float64 throughout."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.jit")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.jit")
        package = pytest.importorskip("laplace")
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    yield package
    torch.set_default_dtype(before)


def fit(package: Any, head: heads.Categorical, h, y, structure: str, variance: float) -> Any:
    """Their posterior at the head's weights. One batch: their Kronecker factors are per batch."""
    net = nn.Sequential(nn.Identity(), nn.Linear(head.in_features, head.classes, bias=head.bias))
    with torch.no_grad():
        net[1].weight.copy_(head.weight[:, : head.in_features])
        if head.bias:
            net[1].bias.copy_(head.weight[:, -1])
    theirs = package.Laplace(
        net,
        "classification",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        prior_precision=1 / variance,
    )
    theirs.fit(DataLoader(TensorDataset(h, y), batch_size=len(h)))
    return theirs


def covariance(theirs: Any, structure: str) -> torch.Tensor:
    if structure == "full":
        return theirs.posterior_covariance
    if structure == "diag":
        return torch.diag(theirs.posterior_variance)
    return theirs.posterior_precision.to_matrix(exponent=-1)


@pytest.mark.parametrize("at_optimum", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
def test_covariances(laplace, rng, structure, bias, at_optimum) -> None:
    """TaylorGGN anywhere, Laplace at the optimum; with a bias, "kron" under separate_bias."""
    head = heads.Categorical(4, 3, bias=bias).double()
    h, y = normal(rng, 28, 4), torch.randint(0, 3, (28,), generator=rng)
    prior = priors.isotropic(head, 0.4)
    scheme: inference.SecondOrder = inference.TaylorGGN(structure, separate_bias=True)
    if at_optimum:
        scheme = inference.Laplace(structure, separate_bias=True, max_steps=2000)
        found = scheme.infer(head, h, y, prior)
        with torch.no_grad():
            head.weight.copy_(found.weight_mean)
    found = scheme.infer(head, h, y, prior).to_laplace_order(bias=bias)
    theirs = fit(laplace, head, h, y, structure, 0.4)
    close(found.covariance_matrix[0], covariance(theirs, structure), 1e-6)
    if at_optimum:
        close(found.mean[0], theirs.mean, 1e-6)


def test_with_a_bias_our_kronecker_factor_keeps_what_theirs_drops(laplace, rng) -> None:
    """Features that are not centred are correlated with the constant; ours says so."""
    head = heads.Categorical(4, 3).double()
    h, y = normal(rng, 28, 4) + 1.0, torch.randint(0, 3, (28,), generator=rng)
    prior = priors.isotropic(head, 0.4)
    exact = inference.TaylorGGN().infer(head, h, y, prior).covariance_matrix[0]
    errors = []
    for separate in (False, True):
        scheme = inference.TaylorGGN("kron", separate_bias=separate)
        found = scheme.infer(head, h, y, prior).to_gaussian().covariance_matrix[0]
        errors.append((found - exact).norm() / exact.norm())
    assert errors[0] < 0.5 * errors[1]


def test_what_newer_releases_of_torch_tell_the_package_is_no_warning_of_ours(laplace) -> None:
    """In a process that has not seen the warning yet: each is given once."""
    script = """
import torch
from bayesagg_pyro import heads, inference, priors
head = heads.Categorical(2, 3)
y = torch.tensor([0, 1, 2])
inference.LaplaceTorch().infer(head, torch.ones(3, 2), y, priors.isotropic(head, 1.0))
"""
    command = [sys.executable, "-W", "error:`torch.jit", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
