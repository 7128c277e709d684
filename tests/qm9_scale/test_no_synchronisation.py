"""A step on an accelerator: nothing is read on the host and no shape depends on a value.

The ``meta`` device stands in for one: the code takes the accelerator's branches there, shapes are
computed, and whatever would have to look at a value raises.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from bayesagg_pyro import BayesAgg, aggregation, heads, priors
from models import MessagePassing, PaddedGraphs

META = torch.device("meta")
AGGREGATIONS = [
    aggregation.PrecisionWeighted.paper(0.85),
    aggregation.PrecisionWeighted(0.5, resolution="dimension"),
    aggregation.PrecisionWeighted({"first": 0.3, "second": 0.9}, keep_length=True),
    aggregation.PrecisionWeighted(1.0, floor=0.1, max_ratio=10.0, resolution="example"),
    aggregation.PrecisionWeighted.paper(0.0),
    aggregation.Bargain(),
]


@pytest.fixture(autouse=True)
def _autocast_knows_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *args: False)


def engine(rule: aggregation.Aggregation, bias: bool) -> BayesAgg:
    made = {
        "first": heads.Gaussian(6, tasks=3, bias=bias),
        "second": heads.Gaussian(6, tasks=2, bias=bias),
    }
    mtl = BayesAgg(made, rule, prior=priors.FullData(variance=1.0), reduction="sum")
    mtl.collect(torch.randn(9, 6), {"first": torch.randn(9, 3), "second": torch.randn(9, 2)})
    mtl.update_prior()
    return mtl.to(META)


def batch() -> tuple[torch.Tensor, dict[str, Any]]:
    features = torch.zeros(7, 6, device=META, requires_grad=True) * 1.0
    return features, {
        "first": torch.zeros(7, 3, device=META),
        "second": torch.zeros(7, 2, device=META),
    }


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rule", AGGREGATIONS, ids=str)
def test_a_bayesian_step_reads_nothing(rule: aggregation.Aggregation, bias: bool) -> None:
    mtl = engine(rule, bias)
    mtl.start_bayes()
    losses = mtl.backward(*batch())
    assert {name: tuple(loss.shape) for name, loss in losses.items()} == {
        "first": (3,),
        "second": (2,),
    }
    assert mtl.info is not None
    assert mtl.info.bayesian


def test_missing_labels_read_nothing() -> None:
    mtl = engine(
        aggregation.PrecisionWeighted(0.5, floor=0.1, max_ratio=5.0, resolution="example"), False
    )
    mtl.start_bayes()
    features, targets = batch()
    mask = torch.ones(7, 3, dtype=torch.bool, device=META)
    mtl.backward(features, {**targets, "first": (targets["first"], mask)})


@pytest.mark.parametrize("rule", AGGREGATIONS, ids=str)
@pytest.mark.parametrize("form", ["padded", "apart", "batches"])
def test_layouts_read_nothing(form: str, rule: aggregation.Aggregation) -> None:
    """Padding, heads with features of their own, and several batches."""
    mtl = engine(rule, False)
    tokens = torch.zeros(2, 7, 6, device=META, requires_grad=True)
    first = torch.zeros(2, 7, 3, device=META), torch.ones(2, 7, dtype=torch.bool, device=META)
    h, y = batch()
    second = {"second": y["second"]}
    given: tuple[Any, ...] = (tokens, {"first": first})
    if form == "apart":
        given = ({"first": tokens, "second": h}, {"first": first, **second})
    elif form == "batches":
        given = ([(tokens, {"first": first}), (h, second), (h * 1.0, y)],)
    for _ in range(2):
        mtl.backward(*given, retain_graph=True)
        mtl.start_bayes()
    assert tokens.grad is not None
    assert mtl.info is not None
    assert mtl.info.weights is not None
    assert mtl.info.weights.shape == (5,)


def test_a_warm_up_step_reads_nothing() -> None:
    mtl = engine(aggregation.PrecisionWeighted.paper(0.5), False)
    mtl.backward(*batch())
    weight = mtl.heads["first"].weight
    assert weight.grad is not None


def test_the_proxy_would_notice() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.zeros((), device=META))
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(3, device=META).nonzero()


def test_the_network_reads_nothing() -> None:
    with META:
        network = MessagePassing(width=8, edge_width=4, out_features=8)
        groups = [
            PaddedGraphs(
                nodes=torch.zeros(count, n, 11),
                edges=torch.zeros(count, n, n, 5),
                atoms=torch.zeros(count, dtype=torch.int64),
            )
            for count, n in ((3, 9), (2, 14))
        ]
        nn.functional.mse_loss(network(groups), torch.zeros(5, 8)).backward()
    assert all(p.grad is not None for p in network.parameters())


def test_the_flag_of_deferred_validation_stays_where_it_is() -> None:
    """A replayed step can only write where the captured one wrote."""
    head = heads.Gaussian(2, tasks=1)
    mtl = BayesAgg({"y": head}, validate="deferred")
    places = set()
    for value in (1.0, float("nan"), 1.0):
        features = torch.full((4, 2), value, requires_grad=True) * 1.0
        mtl.backward(features, {"y": torch.zeros(4, 1)})
        flag = mtl._validation._bad
        assert flag is not None
        places.add(flag.data_ptr())
    assert len(places) == 1
    assert bool(mtl._validation._bad)
