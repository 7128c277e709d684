"""The scheme of docs/extending.md: as the page has it, in the engine, against the truth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from problems import Linear, normal, seed

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, heads, inference, posteriors, priors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


@pytest.fixture
def resampled() -> type[inference.Iterative]:
    """The class as the page prints it."""
    (code,) = re.findall(r"^class Resampled.*?(?=^\S)", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(code.strip().splitlines()) <= 30
    namespace = {"inference": inference, "posteriors": posteriors, "torch": torch}
    exec(code, namespace)
    return namespace["Resampled"]


def test_it_finds_the_posterior(rng, resampled) -> None:
    p = Linear(rng, d=2)
    found = resampled(draws=20_000, keep=4000, generator=seed()).infer(*p.arguments)
    mean, covariance = p.far(found)
    assert mean < 0.1
    assert covariance < 0.1


@pytest.mark.parametrize("refresh", ["step", 2, "epoch"])
def test_it_works_in_the_engine(rng, resampled, refresh) -> None:
    """Training, refresh and state: nothing else had to be written."""

    def engine(number: int) -> ba.BayesAgg:
        torch.manual_seed(number)
        return ba.BayesAgg(
            {"a": heads.Bernoulli(3), "b": heads.Gaussian(3, 2)},
            aggregation.PrecisionWeighted(),
            inference=resampled(draws=200, keep=20, refresh=refresh),
            prior=priors.FullData(0.5),
            generator=seed(number),
        ).double()

    h = normal(rng, 8, 3)
    y = {"a": (torch.rand(8, 1, generator=rng) < 0.5).double(), "b": normal(rng, 8, 2)}
    mtl = engine(0)
    mtl.backward(h.clone().requires_grad_(), y)
    mtl.update_prior()
    mtl.start_bayes()
    mtl.backward(h.clone().requires_grad_(), y)
    other = engine(1)
    other.load_state_dict(mtl.state_dict())
    grads = []
    for one in (mtl, other):
        leaf = h.clone().requires_grad_()
        one.backward(leaf, y)
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    assert grads[0].isfinite().all()
    assert mtl.info.inferred["a"] == (refresh == "step")
