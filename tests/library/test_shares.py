"""Shares of a batch are put together in the order of the processes; threads stand in for these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from bayesagg_pyro.engine import calls, peers
from bayesagg_pyro.engine.alike import check_states
from bayesagg_pyro.engine.batch import Batch, Group
from bayesagg_pyro.engine.peers import Peers
from bayesagg_pyro.engine.processes import Processes
from bayesagg_pyro.errors import ShapeError, StateError
from bayesagg_pyro.targets import Targets
from bayesagg_pyro.validity import CHECKED, Deferred

SIZES = [2, 4, 1]


class Threads:
    """Collective calls of torch between threads; refuses what a real group refuses."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rank = threading.local()
        self.sent: list[Tensor | None] = [None] * count
        self.objects: list[Any] = [None] * count
        self.barrier = threading.Barrier(count, timeout=20)
        self.joint = SimpleNamespace(
            ReduceOp=torch.distributed.ReduceOp,
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda group: count,
            get_rank=lambda group: self.rank.value,
            all_gather=self.all_gather,
            broadcast=self.broadcast,
            all_reduce=self.all_reduce,
            all_gather_object=self.all_gather_object,
        )

    def exchange(self, tensor: Tensor) -> list[Tensor]:
        self.sent[self.rank.value] = tensor.clone()
        self.barrier.wait()
        found = [one for one in self.sent if one is not None]
        self.barrier.wait()
        assert len({(one.shape, one.dtype) for one in found}) == 1
        assert tensor.dtype != torch.bool
        return found

    def all_gather(self, out: list[Tensor], tensor: Tensor, group: None) -> None:
        for target, one in zip(out, self.exchange(tensor), strict=True):
            assert target.dtype == one.dtype
            assert target.shape == one.shape
            target.copy_(one)

    def broadcast(self, tensor: Tensor, source: int, group: None) -> None:
        tensor.copy_(self.exchange(tensor)[source])

    def all_reduce(self, tensor: Tensor, op: Any, group: None) -> None:
        assert op == torch.distributed.ReduceOp.MIN
        tensor.copy_(torch.stack(self.exchange(tensor)).amin(0))

    def all_gather_object(self, out: list[Any], own: Any, group: None) -> None:
        self.objects[self.rank.value] = own
        self.barrier.wait()
        out[:] = self.objects
        self.barrier.wait()

    def run(self, call: Callable[[int], Any]) -> list[Any]:
        """What `call(rank)` gives or raises in each."""
        found: list[Any] = [None] * self.count

        def one(rank: int) -> None:
            self.rank.value = rank
            try:
                found[rank] = call(rank)
            except BaseException as error:
                found[rank] = error
                if not isinstance(error, ba.errors.BayesAggError):
                    self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads(len(SIZES))
    for module in calls, peers:
        monkeypatch.setattr(module, "dist", made.joint)
    return made


def shares(rng: torch.Generator, *, flag: bool = False) -> list[Batch]:
    """With a mask, a weight and a wider dtype in one share each, and none in the others."""
    found = []
    for rank, size in enumerate(SIZES):
        draw = lambda *shape: torch.randn(*shape, generator=rng)  # noqa: E731
        mask = torch.rand(size, 2, generator=rng) > 0.5 if rank == 1 else None
        weight = draw(size, 2).abs() if rank == 2 else None
        labels = torch.arange(size).reshape(-1, 1) + 10 * rank
        targets = {
            "r": Targets(draw(size, 2).to(torch.float64 if rank == 0 else torch.float32), mask),
            "c": Targets(labels, None, weight[:, :1] if weight is not None else None),
        }
        validity = Deferred(torch.tensor(True)) if flag else CHECKED
        found.append(Batch((Group(draw(size, 3), targets),), validity))
    return found


def whole(share: Callable[[], Batch | None]) -> Batch | None:
    return Processes(True).whole(
        ("collect",),
        share,
        parameters=(),
        nothing=lambda: CHECKED,
        join=lambda: None,
        device=torch.device("cpu"),
    )


def features(batch: Batch) -> Tensor:
    (group,) = batch.groups
    return group.features


def test_the_whole_batch_is_all_shares_in_order(threads: Threads, rng: torch.Generator) -> None:
    parts = shares(rng)
    found = threads.run(lambda i: whole(lambda: parts[i]))
    values = torch.cat([part.examples("r")[1].values.double() for part in parts])
    mask = torch.ones(sum(SIZES), 2, dtype=torch.bool)
    mask[2:6] = parts[1].examples("r")[1].mask
    weight = torch.ones(sum(SIZES), 1, dtype=torch.float64)
    weight[6:] = parts[2].examples("c")[1].weight
    for rank, batch in enumerate(found):
        assert isinstance(batch, Batch), batch
        assert torch.equal(features(batch), torch.cat([features(part) for part in parts]))
        assert torch.equal(features(batch)[batch.groups[0].rows], features(parts[rank]))
        assert batch.processes == 3
        assert batch.validity is CHECKED
        regression, labels = batch.examples("r")[1], batch.examples("c")[1]
        assert torch.equal(regression.values, values)
        assert regression.mask is not None
        assert regression.mask.dtype == torch.bool
        assert torch.equal(regression.mask, mask)
        assert regression.weight is None
        assert labels.values.dtype == torch.int64
        assert labels.values.flatten().tolist() == [0, 1, 10, 11, 12, 13, 20]
        assert labels.mask is None
        assert labels.weight is not None
        assert torch.equal(labels.weight, weight)
        update = torch.randn(sum(SIZES), 3, generator=rng)
        assert torch.equal(batch.own([update])[0], 3 * update[batch.groups[0].rows])


def test_one_bad_share_makes_the_whole_batch_bad(threads: Threads, rng: torch.Generator) -> None:
    parts = shares(rng, flag=True)
    parts[1] = Batch(parts[1].groups, Deferred(torch.tensor(False)))
    found = threads.run(lambda i: whole(lambda: parts[i]))
    assert [bool(batch.validity.flag) for batch in found] == [False] * 3
    assert all(batch.validity.flag.dtype == torch.bool for batch in found)


def test_features_of_different_dtypes_are_refused_by_all(
    threads: Threads, rng: torch.Generator
) -> None:
    parts = shares(rng)
    parts[2] = parts[2].mapped(torch.Tensor.double)
    found = threads.run(lambda i: whole(lambda: parts[i]))
    for error in found:
        assert isinstance(error, StateError)
        assert "['torch.float32', 'torch.float32', 'torch.float64']" in str(error)


@pytest.mark.parametrize("bad", [0, 2])
def test_a_refused_share_is_told_to_the_others(
    threads: Threads, rng: torch.Generator, bad: int
) -> None:
    parts = shares(rng)

    def parse(rank: int) -> Batch:
        if rank == bad:
            raise ShapeError("of this share")
        return parts[rank]

    found = threads.run(lambda i: whole(lambda: parse(i)))
    for rank, error in enumerate(found):
        assert isinstance(error, ShapeError if rank == bad else StateError)
        assert ("of this share" if rank == bad else f"process {bad} refused") in str(error)


def test_who_wants_none_of_it_is_alone(threads: Threads) -> None:
    assert Processes(False).count == 1
    assert Processes(True).count == 3


def test_all_start_from_the_first_ones_weights(threads: Threads) -> None:
    modules = [nn.BatchNorm1d(3) for _ in SIZES]
    for rank, module in enumerate(modules):
        nn.init.constant_(module.weight, float(rank))
        module.running_mean.fill_(float(rank))  # type: ignore[union-attr, operator]
    tensors = [[*module.parameters(), *module.buffers()] for module in modules]
    threads.run(lambda i: Processes(True).broadcast(tensors[i]))
    for module in modules:
        assert not module.weight.any()
        assert not module.running_mean.any()  # type: ignore[union-attr, operator]


def test_states_that_differ_are_named(threads: Threads) -> None:
    states = [{"a": torch.ones(2), "b": torch.tensor(float(rank == 2))} for rank in range(3)]
    cpu = torch.device("cpu")
    found = threads.run(lambda i: check_states(states[i], Peers(True), cpu))
    assert all(isinstance(error, StateError) and "in 'b'" in str(error) for error in found)
    same = threads.run(lambda i: check_states(states[0], Peers(True), cpu))
    assert same == [None] * 3


def test_a_share_may_be_empty_or_used_up(threads: Threads, rng: torch.Generator) -> None:
    parts: list[Batch | None] = list(shares(rng))
    first, last = parts[0], parts[2]
    assert first is not None
    assert last is not None
    (group,) = first.groups
    targets = {k: v.examples(slice(0)) for k, v in group.targets.items()}
    parts[1] = Batch((Group(group.features[:0], targets),))
    parts[2] = None
    found = threads.run(lambda i: whole(lambda: parts[i]))
    for batch in found:
        assert isinstance(batch, Batch), batch
        assert torch.equal(features(batch), group.features)
        assert batch.examples("r")[1].mask is None
        assert torch.equal(batch.examples("c")[1].values, first.examples("c")[1].values)
    assert [batch.groups[0].rows for batch in found] == [slice(0, 2), slice(2, 2), slice(2, 2)]
    assert threads.run(lambda i: whole(lambda: None)) == [None] * 3
    parts = [parts[1]] * 3
    for error in threads.run(lambda i: whole(lambda: parts[i])):
        assert isinstance(error, ShapeError)
        assert "every process's share" in str(error)


def test_an_error_of_any_kind_is_told(threads: Threads, rng: torch.Generator) -> None:
    parts = shares(rng)

    def share(rank: int) -> Batch:
        if rank == 1:
            raise OSError("a file is gone")
        return parts[rank]

    def outcome(rank: int) -> str:
        try:
            whole(lambda: share(rank))
        except (OSError, StateError) as error:
            return str(error)
        return "none"

    first, second, third = threads.run(outcome)
    assert second == "a file is gone"
    assert "process 1 refused" in first
    assert first == third


def test_engines_join_once_and_share_their_streams(threads: Threads, rng: torch.Generator) -> None:
    """In later steps a head that a user changed in one process stays as that one has it."""
    engines = [ba.BayesAgg({"a": heads.Gaussian(3), "b": heads.Gaussian(3)}) for _ in SIZES]
    x = torch.randn(7, 3, generator=rng)
    y = {name: torch.randn(7, 1, generator=rng) for name in ("a", "b")}
    starts = [sum(SIZES[:rank]) for rank in range(3)]
    rows = [slice(start, start + size) for start, size in zip(starts, SIZES, strict=True)]

    def collect(rank: int) -> None:
        share = {name: value[rows[rank]] for name, value in y.items()}
        engines[rank].collect(x[rows[rank]], share)

    assert threads.run(collect) == [None] * 3
    first, *others = [dict(one.heads.named_parameters()) for one in engines]
    assert all(torch.equal(first[k], other[k]) for other in others for k in first)
    drawn = [
        [torch.rand(4, generator=one._slots[name].generator).tolist() for name in ("a", "b")]
        for one in engines
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0][0] != drawn[0][1]
    with torch.no_grad():
        first["a.weight"].add_(1.0)
    before = first["a.weight"].clone()
    assert threads.run(collect) == [None] * 3
    assert torch.equal(first["a.weight"], before)
    assert not torch.equal(others[0]["a.weight"], before)
    alone = ba.BayesAgg({"a": heads.Gaussian(3), "b": heads.Gaussian(3)}, distributed=False)
    for _ in range(2):
        alone.collect(x, y)
    for one in [*engines, alone]:
        one._renew()
    for one in engines:
        for name, prior in one.priors().items():
            torch.testing.assert_close(prior.mean, alone.priors()[name].mean)


def test_heads_of_another_precision_are_refused_by_all(
    threads: Threads, rng: torch.Generator
) -> None:
    engines = [ba.BayesAgg({"a": heads.Gaussian(3)}) for _ in SIZES]
    engines[1].double()
    x, y = torch.randn(7, 3, generator=rng), torch.randn(7, 1, generator=rng)
    before = [engine.heads["a"].weight.clone() for engine in engines]
    for error in threads.run(lambda rank: engines[rank].collect(x[rank:], {"a": y[rank:]})):
        assert isinstance(error, StateError)
        assert "differ in heads: process 0: " in str(error)
        assert "torch.float64" in str(error)
    for engine, weight in zip(engines, before, strict=True):
        assert torch.equal(engine.heads["a"].weight, weight)


def test_what_one_process_alone_loads_is_noticed(threads: Threads, rng: torch.Generator) -> None:
    x, y = torch.randn(7, 3, generator=rng), torch.randn(7, 1, generator=rng)
    alone = ba.BayesAgg({"a": heads.Gaussian(3)}, distributed=False)
    saved = alone.state_dict()
    alone.collect(x, {"a": y})
    engines = [ba.BayesAgg({"a": heads.Gaussian(3)}) for _ in SIZES]

    def collect(rank: int) -> None:
        engines[rank].collect(x[rank::3], {"a": y[rank::3]})

    assert threads.run(collect) == [None] * 3
    engines[2].load_state_dict(saved)
    weights = [engine.heads["a"].weight.clone() for engine in engines]
    for error in threads.run(collect):
        assert isinstance(error, StateError)
        assert "the processes begin from different states" in str(error)
    for engine, weight in zip(engines, weights, strict=True):
        assert torch.equal(engine.heads["a"].weight, weight)
    for engine in engines:
        engine.load_state_dict(saved)
    assert threads.run(collect) == [None] * 3
    drawn = [torch.rand(3, generator=one._slots["a"].generator).tolist() for one in engines]
    assert drawn[0] == drawn[1] == drawn[2]


def test_processes_that_no_group_connects_are_told_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def step(mtl: ba.BayesAgg) -> None:
        mtl.backward(torch.randn(4, 2, requires_grad=True), {"y": torch.randn(4)})

    told, alone = (ba.BayesAgg({"y": heads.Gaussian(2)}, distributed=d) for d in (True, False))
    for started in "1", "":
        monkeypatch.setenv("WORLD_SIZE", started)
        step(told)
    monkeypatch.setenv("WORLD_SIZE", "2")
    step(alone)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"^2 processes .*init_process_group\(\)"):
        step(told)
    step(told)
