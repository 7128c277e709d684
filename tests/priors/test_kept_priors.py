"""An engine that moves or is saved takes all with it that its policies hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from setups import POLICIES

import bayesagg_pyro as ba
from bayesagg_pyro import heads

HEADS = {"Gaussian": lambda: heads.Gaussian(3, 2), "Categorical": lambda: heads.Categorical(3, 4)}


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a state, however it is nested."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}")


def batch(kind: str, rng: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    h = torch.randn(10, 3, generator=rng, dtype=torch.float64)
    return h, {"a": h[:, :2] if kind == "Gaussian" else torch.arange(10) % 4}


def end_epoch(mtl: ba.BayesAgg, policy: str, fresh: Any) -> None:
    mtl.update_prior([fresh] if policy.startswith("fresh") else None)


def engine(kind: str, policy: str) -> ba.BayesAgg:
    return ba.BayesAgg({"a": HEADS[kind]()}, prior=POLICIES[policy]()).double()


def trained(kind: str, policy: str, rng: torch.Generator) -> ba.BayesAgg:
    """An engine in the middle of its second epoch."""
    mtl, seen = engine(kind, policy), batch(kind, rng)
    mtl.collect(*seen)
    end_epoch(mtl, policy, seen)
    mtl.collect(*batch(kind, rng))
    return mtl


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HEADS)
def test_statistics_priors_and_posteriors_move(rng, kind, policy) -> None:
    """The device "meta" stands for any other."""
    mtl = trained(kind, policy, rng).to("meta")
    state = mtl.state_dict().items()
    held = {name: t for name, t in state if t.ndim or t.is_floating_point()}  # no counts
    for which, found in {"prior": mtl.priors(), "posterior": mtl.posteriors()}.items():
        held |= {f"{which} {name}": t for name, t in found["a"].tensors().items()}
    assert len(held) > 5
    assert [name for name, tensor in held.items() if tensor.device.type != "meta"] == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HEADS)
def test_a_loaded_engine_goes_on_where_the_saved_one_was(rng, kind, policy) -> None:
    if kind == "Categorical" and "evidence" in policy:
        pytest.skip("slow, and kept as for the Gaussian head")
    saved, loaded = trained(kind, policy, rng), engine(kind, policy)
    loaded.load_state_dict(saved.state_dict())
    for _ in range(2):
        for ask in (ba.BayesAgg.priors, ba.BayesAgg.posteriors):
            found, expected = ask(loaded)["a"].tensors(), ask(saved)["a"].tensors()
            assert found.keys() == expected.keys()
            for name, tensor in expected.items():
                assert torch.equal(found[name], tensor), name
        seen = batch(kind, rng)
        for mtl in (saved, loaded):
            mtl.collect(*seen)
            end_epoch(mtl, policy, seen)
