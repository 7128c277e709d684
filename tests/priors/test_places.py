"""An engine that moves takes all it holds with it; "meta" stands for any other device."""

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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HEADS)
def test_statistics_priors_and_posteriors_move(rng, kind, policy) -> None:
    mtl = ba.BayesAgg({"a": HEADS[kind]()}, prior=POLICIES[policy]()).double()
    h = torch.randn(10, 3, generator=rng, dtype=torch.float64)
    y = {"a": h[:, :2] if kind == "Gaussian" else torch.arange(10) % 4}
    mtl.collect(h, y)
    mtl.update_prior([(h, y)] if policy.startswith("fresh") else None)
    mtl.collect(h, y)
    mtl.to("meta")
    held = dict(tensors(mtl.state_dict()))
    for which, found in {"prior": mtl.priors(), "posterior": mtl.posteriors()}.items():
        held |= {f"{which} {name}": t for name, t in found["a"].tensors().items()}
    assert len(held) > 5
    assert [name for name, tensor in held.items() if tensor.device.type != "meta"] == []
