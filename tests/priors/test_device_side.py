"""What a step does to a prior reads no value back and keeps its tensors where they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from setups import gaussian
from torch.utils._python_dispatch import TorchDispatchMode

from bayesagg_pyro import inference, priors
from bayesagg_pyro.validity import Deferred

#: Operations that hand a value to Python: on an accelerator, each waits for the device.
READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
}


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            self.reads.append(func)
        return func(*args, **(kwargs or {}))


def test_the_watch_sees_a_read() -> None:
    with Watch() as watch:
        bool(torch.ones(2).sum() > 1)
    assert watch.reads


@pytest.mark.parametrize("scheme", [inference.Conjugate(), inference.IntegratedNoise()])
@pytest.mark.parametrize(
    "policy",
    [priors.FullData(), priors.Running(30), priors.Running(30, temperature=2.0)],
    ids=["full", "running", "tempered"],
)
def test_collecting_reads_nothing(policy, scheme, rng) -> None:
    data = gaussian(rng)
    tracker = policy.start(data.head, scheme)
    batches = [data.parsed(slice(i, i + 10)) for i in (0, 10, 20)]
    validity = Deferred(torch.tensor(True))
    with Watch() as watch:
        for features, targets in batches:
            tracker.collect(features, targets, validity)
    assert not watch.reads


def test_leaving_out_reads_nothing(rng) -> None:
    data = gaussian(rng)
    tracker = priors.FullData(leave_batch_out=True).start(data.head, inference.Conjugate())
    tracker.collect(*data.parsed(slice(0, 30)))
    tracker.update()
    batch = data.parsed(slice(0, 8))
    with Watch() as watch:
        cavity = tracker.prior_for(*batch)
    assert not watch.reads
    assert cavity.info.left_out.all()
    assert not cavity.info.jitter.any()


def test_running_sums_keep_their_places(rng) -> None:
    """So that a captured step goes on adding to the same ones, across updates too."""
    data = gaussian(rng)
    tracker = priors.Running(30).start(data.head, inference.Conjugate())
    tracker.collect(*data.parsed(slice(0, 8)))  # the first batch with holes makes room for them
    sums = tracker._statistics
    places = [getattr(sums, name).data_ptr() for name in sums._SUMS]
    for part in (slice(8, 20), slice(20, 30)):
        tracker.collect(*data.parsed(part))
        tracker.update()
    assert tracker._statistics is sums
    assert [getattr(sums, name).data_ptr() for name in sums._SUMS] == places
