"""Likelihoods that learn (cut-points): their parameters are constants of inference."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from problems import normal, seed
from torch import Tensor

import bayesagg_pyro as ba
from bayesagg_pyro import heads, inference, priors


def on_a_graph(value: object) -> Iterator[Tensor]:
    """Tensors of a nested state that would keep an autograd graph alive."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from on_a_graph(item)


@pytest.mark.parametrize(
    "scheme",
    [
        inference.TaylorGGN(),
        inference.TaylorGGN("diag"),
        inference.Laplace(),
    ],
    ids=repr,
)
def test_posterior_is_detached(rng, scheme) -> None:
    head = heads.Ordinal(3, 4, tasks=2)
    assert head.cutpoints.requires_grad
    h, y = normal(rng, 12, 3).float(), torch.randint(4, (12, 2), generator=rng)
    found = scheme.infer(head, h, y, priors.isotropic(head, 1.0))
    assert list(on_a_graph({**found.state_dict(), **vars(found.info)})) == []


@pytest.mark.parametrize(
    "prior",
    [
        priors.FullData(),
        priors.FullData(leave_batch_out=True),
        priors.FullData(storage=inference.Storage(streaming=True)),
        priors.Running(half_life=20),
        priors.PreviousBatch(),
        priors.FullData("learned"),
    ],
    ids=repr,
)
def test_engine_holds_no_graph(rng, prior) -> None:
    """Else its state can be neither copied nor freed, and grows by every step it depends on."""
    mtl = ba.BayesAgg({"grade": heads.Ordinal(3, 4)}, prior=prior, generator=seed())
    h, y = normal(rng, 12, 3).float(), torch.randint(4, (12, 1), generator=rng)
    for _ in range(2):
        mtl.backward(h.clone().requires_grad_(), {"grade": y})
        mtl.backward(h.clone().requires_grad_(), {"grade": y})
        mtl.update_prior()
        mtl.start_bayes()
    mtl.backward(h.clone().requires_grad_(), {"grade": y})
    assert mtl.heads["grade"].free_cutpoints.grad is not None  # still learned
    state = mtl.state_dict()
    assert list(on_a_graph(dict(state))) == []
    copy.deepcopy(mtl).load_state_dict(copy.deepcopy(state))
