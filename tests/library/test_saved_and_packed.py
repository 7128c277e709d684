"""Packed precisions, and what is saved beside tensors."""

from __future__ import annotations

import copy

import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, errors, heads, inference, posteriors, priors

F64 = torch.float64


def _gaussian(scale: float) -> posteriors.Gaussian:
    torch.manual_seed(0)
    root = torch.randn(3, 4, 9, dtype=F64)
    return posteriors.Gaussian(torch.randn(3, 4, dtype=F64), scale * root @ root.mT)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_packing_knows_no_scale(scale: float, dtype: torch.dtype) -> None:
    p = _gaussian(scale)
    packed = posteriors.PackedGaussian.pack(p, dtype)
    unit = p.precision_matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    unit = unit[..., None] * unit[:, None]
    close = torch.finfo(dtype).eps
    error = (packed.precision_matrix - p.precision_matrix) / unit
    assert error.abs().max() < close
    back = posteriors.Posterior.from_state_dict(packed.state_dict())
    assert torch.equal(back.variance, packed.variance)


def test_rounding_that_costs_definiteness_is_refused() -> None:
    torch.manual_seed(0)
    root = torch.randn(1, 9, 2, dtype=F64)
    p = posteriors.Gaussian(torch.zeros(1, 9, dtype=F64), root @ root.mT + 1e-6 * torch.eye(9))
    with pytest.raises(errors.NumericalError, match="wider dtype"):
        posteriors.PackedGaussian.pack(p, torch.float16)


@pytest.mark.parametrize("entry", ["info.jitter", "info.condition", "jitter"])
def test_info_of_another_posterior_is_refused(entry: str) -> None:
    state = _gaussian(1.0).state_dict()
    state[f"bayesagg_pyro.Gaussian.{entry}"] = torch.zeros(5)
    with pytest.raises((errors.StateError, errors.ShapeError), match="jitter"):
        posteriors.Posterior.from_state_dict(state)


def test_info_that_is_not_whole_is_refused() -> None:
    state = _gaussian(1.0).state_dict()
    del state["bayesagg_pyro.Gaussian.info.jitter"]
    with pytest.raises(errors.StateError, match="info"):
        posteriors.Posterior.from_state_dict(state)


def test_chains_have_each_their_number() -> None:
    zero = torch.zeros(2)
    info = posteriors.Info(zero, zero, divergences=torch.zeros(2))
    posterior = posteriors.Empirical(torch.randn(8, 2, 3), chains=2, info=info)
    state = posterior.state_dict()
    posteriors.Posterior.from_state_dict(state)
    state["bayesagg_pyro.Empirical.info.divergences"] = torch.zeros(3)
    with pytest.raises(errors.StateError, match="info"):
        posteriors.Posterior.from_state_dict(state)


def test_jitter_says_that_digits_are_lost() -> None:
    ones = torch.ones(1, 2, 2, dtype=F64)
    posterior = posteriors.Gaussian(torch.zeros(1, 2, dtype=F64), ones)
    assert posterior.info.jitter > 0
    assert posterior.info.rounding >= 1


def test_infinite_bounds_of_a_module_are_no_fault() -> None:
    head = heads.Bernoulli(2).embed(heads.Body(torch.nn.Linear(2, 2), 2))
    head.register_buffer("bounds", torch.tensor([0.0, torch.inf]))
    mtl = ba.BayesAgg({"y": head})
    mtl.load_state_dict(mtl.state_dict())
    state = mtl.state_dict()
    state["heads.y.bounds"] = torch.tensor([torch.inf, torch.inf])
    with pytest.raises(errors.NonFiniteError, match="bounds"):
        mtl.load_state_dict(state)


def test_a_copy_makes_no_prior() -> None:
    mtl = ba.BayesAgg({"y": heads.Bernoulli(2)}, prior=priors.Running(10.0), validate="deferred")
    mtl.backward(torch.randn(4, 2, requires_grad=True), {"y": torch.ones(4, 1)})
    mtl.zero_grad()
    before, after = mtl.state_dict(), copy.deepcopy(mtl).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_refused_first_draw_leaves_no_generator() -> None:
    method = aggregation.PerSample(aggregation.Mean(), samples=2)
    mtl = ba.BayesAgg({"y": heads.Gaussian(2)}, method, prior=priors.Constant(), warmup=False)
    before = mtl.state_dict()
    x = torch.full((3, 2), 1e38, requires_grad=True)
    with pytest.raises(errors.NonFiniteError):
        mtl.backward(x, {"y": torch.ones(3, 1)})
    assert mtl.state_dict().keys() == before.keys()


def test_collect_checks_the_losses_as_a_step_does() -> None:
    mtl = ba.BayesAgg({"y": heads.Poisson(1)}, inference=inference.Laplace())
    with torch.no_grad():
        mtl.heads["y"].weight.fill_(1.0)
    with pytest.raises(errors.NonFiniteError, match="the loss"):
        mtl.collect(torch.full((3, 1), 200.0), {"y": torch.ones(3, 1)})
    mtl.collect(torch.full((3, 1), 2.0), {"y": torch.ones(3, 1)})
    mtl.update_prior()
