"""Quadrature where the posterior lies far from the bend of its loss."""

from __future__ import annotations

import pytest
import torch

from bayesagg_pyro import gradients, heads, posteriors

F64 = torch.float64


@pytest.mark.parametrize("at", [100.0, 300.0, 1000.0])
@pytest.mark.parametrize("std", [1e-3, 1.0, 10.0, 30.0, 45.0])
@pytest.mark.parametrize("head", [heads.Bernoulli(1, bias=False), heads.Ordinal(1, 3, bias=False)])
def test_a_wrong_label_seen_from_afar(head, at: float, std: float) -> None:
    """There dloss/du is 1 wherever there is mass, so the gradient is distributed as the weight."""
    if at < 7 * std:
        pytest.skip("the bend is near")
    posterior = posteriors.Gaussian(
        torch.tensor([[at]], dtype=F64), torch.tensor([[[std**-2]]], dtype=F64)
    )
    label = torch.zeros(1, 1, dtype=F64 if head.target_kind == "binary" else torch.long)
    found = gradients.distribution(
        head, posterior, torch.ones(1, 1, dtype=F64), label, estimator=gradients.Quadrature()
    )
    assert abs(float(found.mean) - at) < 2e-3 * std
    assert abs(float(found.variance.sqrt()) / std - 1) < 2e-3
