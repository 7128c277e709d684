"""What two processes may do apart from each other, what is refused, and who averages gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import errors, gradients, heads, inference, priors
from bayesagg_pyro.aggregation import PrecisionWeighted
from tests.library import ranks

BOTH = "tensor parallel, sharded over the data"
#: Shares of 16 examples.
CUTS = [0, 9, 16]
WHOLE = slice(None)


def engine(**settings: Any) -> ba.BayesAgg:
    torch.manual_seed(0)
    made = {"r": heads.Gaussian(4, tasks=2), "b": heads.Bernoulli(4)}
    return ba.BayesAgg(made, **settings).double()


def data() -> tuple[Tensor, dict[str, Tensor]]:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    return x, {"r": torch.sin(x[:, :2]), "b": (x[:, 2:3] > 0).double()}


def features(**settings: Any) -> Tensor:
    return data()[0][:, :4].clone().requires_grad_(**settings)


def share(rank: int) -> slice:
    return slice(CUTS[rank], CUTS[rank + 1])


def some(rows: slice) -> dict[str, Tensor]:
    return {name: y[rows] for name, y in data()[1].items()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


# -- backbones ------------------------------------------------------------------------------------


def sharded(net: Net) -> nn.Module:
    for module in (net.a, net.b, net):
        fully_shard(module)
    return net


def split(net: Net) -> nn.Module:
    plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
    return parallelize_module(net, init_device_mesh("cpu", (2,)), plan)


def split_and_sharded(net: Net) -> tuple[nn.Module, Any]:
    """Of two processes that share each example, and two such pairs that share the batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    for module in (net.a, net.b, net):
        fully_shard(module, mesh=mesh["dp"])
    return net, mesh["dp"].get_group()


BACKBONES: dict[str, Callable[[Net], nn.Module]] = {
    "unused parameters": lambda net: DistributedDataParallel(net, find_unused_parameters=True),
    "static graph": lambda net: DistributedDataParallel(net, static_graph=True),
    "no_sync": lambda net: DistributedDataParallel(net, find_unused_parameters=True),
    "fully_shard": sharded,
    "tensor parallel": split,
}


def micro_batches(kind: str, rank: int | None) -> list[slice]:
    if kind != "no_sync":
        return [WHOLE if rank is None or kind == "tensor parallel" else share(rank)]
    if rank is None:
        return [slice(0, 8), slice(8, 16)]
    return [[slice(0, 5), slice(8, 10)], [slice(5, 8), slice(10, 16)]][rank]


def trained(kind: str, rank: int | None) -> dict[str, Tensor]:
    """Gradients after two steps of warm-up and two Bayesian ones."""
    torch.manual_seed(0)
    net: Any = Net()
    together: Any = kind != "tensor parallel"
    if kind == BOTH and rank is not None:
        net, together = split_and_sharded(net)
        rank //= 2
    elif rank is not None:
        net = BACKBONES[kind](net)
    mtl = engine(warmup_epochs=1, distributed=together)
    # Tensors of a sharded network and others do not meet in one update.
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, foreach=False) for m in (net, mtl)]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        parts = micro_batches(kind, rank)
        for rows in parts:
            waits = rows is not parts[-1] and rank is not None
            with net.no_sync() if waits else nullcontext():
                mtl.backward(net(data()[0][rows]), some(rows))
        for optimizer in optimizers:
            optimizer.step()
        if step == 1:
            mtl.update_prior()
    grads = {
        name.removeprefix("module."): getattr(p.grad, "full_tensor", lambda p=p: p.grad)()
        for name, p in net.named_parameters()
        if p.grad is not None
    }
    return {**grads, **mtl.state_dict()}


# -- other calls ----------------------------------------------------------------------------------


def told(call: Callable[[], Any]) -> str:
    """Kind and text of what is raised."""
    try:
        call()
    except (errors.BayesAggError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def labels_left_out(rank: int | None) -> Any:
    """The second process has no label at all, then the first none of one head."""
    mtl, h = engine(), features()
    rows = WHOLE if rank is None else share(rank)
    seen = torch.arange(16) < CUTS[1]
    marked = {k: (v, seen[:, None].expand_as(v)) for k, v in data()[1].items()}
    mtl.backward(h[rows], marked if rank is None else {} if rank == 1 else some(rows))
    late = {**data()[1], "b": (data()[1]["b"], ~seen[:, None])}
    own = {"r": some(rows)["r"]} if rank == 0 else some(rows)
    losses = mtl.backward(h[rows], late if rank is None else own)
    mtl.update_prior()
    grad = torch.zeros(0) if h.grad is None else h.grad
    if rank is not None:
        dist.all_reduce(grad)
        grad /= 2
    return {**losses, **mtl.state_dict(), "grad": grad}


def heads_that_read_apart(rank: int | None) -> Any:
    """The second process has examples of both heads, then of the first alone."""
    mtl, rows = engine(), WHOLE if rank is None else share(rank)
    one, two = features(), (2 * features().detach()).requires_grad_()
    mtl.backward({"r": one[rows], "b": two[rows]}, some(rows))
    late = slice(CUTS[1]) if rank is None else rows
    given = {"r": one[rows], "b": two[late]}
    targets = {"r": some(rows)["r"], "b": some(late)["b"]}
    if rank == 1:
        del given["b"], targets["b"]
    mtl.backward(given, targets)
    mtl.update_prior()
    grads = {"one": one.grad, "two": two.grad}
    if rank is not None:
        for grad in grads.values():
            dist.all_reduce(grad)
            grad /= 2
    return {**grads, **mtl.state_dict()}


def batches_used_up(rank: int | None) -> Any:
    """Three batches in one process, one in the other; then, twice, none in the other."""
    mtl, h = engine(prior=priors.Fresh()), features(requires_grad=False)
    parts = {None: [WHOLE], 0: [slice(0, 3), slice(3, 6), slice(6, 9)], 1: [slice(9, 16)]}[rank]
    mtl.refit((h[rows], some(rows)) for rows in parts)
    found = dict(mtl.state_dict())
    parts = [slice(0, 3), slice(3, 16)] if rank == 0 else [WHOLE] if rank is None else []
    mtl.update_prior((h[rows], some(rows)) for rows in parts)
    mtl.calibrate((h[rows], some(rows)) for rows in parts)
    return {**found, **{f"later {k}": v for k, v in mtl.state_dict().items()}}


def loader_fails(rank: int) -> list[str]:
    mtl, h = engine(), features(requires_grad=False)

    def batches(*, fail: bool) -> Iterator[Any]:
        yield h[share(rank)], some(share(rank))
        if fail and rank == 1:
            raise OSError("a file is gone")

    found = told(lambda: mtl.refit(batches(fail=True)))
    return [found, told(lambda: mtl.refit(batches(fail=False))), str(mtl.warmup)]


def deferred(rank: int) -> list[str]:
    mtl, h = engine(validate="deferred"), features()
    bad = h.detach() * (torch.nan if rank == 1 else 1.0)
    bad.requires_grad_()
    mtl.backward(bad[share(rank)], some(share(rank)))
    assert bad.grad is not None
    assert not bad.grad.any()
    found = [told(mtl.update_prior)]
    mtl.backward(h[share(rank)], some(share(rank)))
    return [*found, told(mtl.update_prior)]


def other_calls(rank: int) -> list[str]:
    mtl, h, rows = engine(), features(), share(rank)

    def step() -> None:
        mtl.backward(h[rows], some(rows))

    def refused(change: Callable[[], Any], back: Callable[[], Any]) -> str:
        if rank == 1:
            change()
        found = told(step)
        if rank == 1:
            back()
        return found

    found = [told(step if rank == 0 else mtl.update_prior)]
    found += [refused(mtl.eval, mtl.train)]
    found += [told(lambda: mtl.backward(h[:0] if rank else h.detach(), {}))]
    assert h.grad is None
    step()
    return [*found, told(lambda: mtl.update_prior([] if rank else None)), told(mtl.update_prior)]


def other_scalers(rank: int) -> list[str]:
    """A scaler in one process alone, then scales that differ; gradients stay as they are."""
    mtl, h, rows = engine(), features(), share(rank)

    def step(scaler: GradScaler | None) -> str:
        return told(lambda: mtl.backward(h[rows], some(rows), scaler=scaler))

    one = GradScaler("cpu", init_scale=8.0)
    found = [step(one if rank == 0 else None), step(GradScaler("cpu", init_scale=4.0 + rank))]
    assert h.grad is None
    return [*found, step(GradScaler("cpu", enabled=False) if rank else None), step(one)]


def other_engines(rank: int) -> list[str]:
    """Other sizes, another order, another scheme, another memory; weights stay as they are."""
    found, second = [], rank == 1
    order = ["a", "b"][:: -1 if second else 1]
    for made, settings in (
        ({"a": heads.Gaussian(4, tasks=2 + rank)}, {}),
        ({name: heads.Gaussian(4) for name in order}, {}),
        ({"a": heads.Bernoulli(4)}, {"inference": inference.Laplace() if second else None}),
        ({"a": heads.Bernoulli(4)}, {"working_memory": None if second else 10}),
    ):
        mtl, h = ba.BayesAgg(made, **settings).double(), features()
        before = copy.deepcopy(mtl.heads.state_dict())
        y = {name: h.detach()[:, : head.tasks].sigmoid().round() for name, head in made.items()}
        found += [told(lambda: mtl.collect(h, y))]  # noqa: B023
        after = mtl.heads.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
    return found


def watched_in_one(rank: int | None) -> Any:
    """The first process keeps gradients in one step, whose draws come in pieces else."""
    seed = torch.Generator().manual_seed(3)
    estimator = gradients.MonteCarlo(4)
    mtl = engine(
        aggregation=PrecisionWeighted.paper(), estimator=estimator, working_memory=1, generator=seed
    )
    rows, found = WHOLE if rank is None else share(rank), {}
    mtl.collect(features()[rows], some(rows))
    mtl.update_prior()
    mtl.start_bayes()
    for step in range(3):
        h = features()
        mtl.keep_gradients = step == 1 and rank != 1
        mtl.backward(h[rows], some(rows))
        assert mtl.info is not None
        assert (mtl.info.gradients is not None) == mtl.keep_gradients
        assert h.grad is not None
        if rank is not None:
            dist.all_reduce(h.grad)
            h.grad /= 2
        found[f"grad {step}"] = h.grad
    return found


def other_states(rank: int) -> list[str]:
    mtl, rows = engine(), share(rank)
    h = features(requires_grad=False)
    mtl.collect(h[rows], some(rows))
    new = engine()
    if rank == 1:
        new.load_state_dict(mtl.state_dict())
    found = [told(lambda: new.collect(h[rows], some(rows)))]
    new.load_state_dict(mtl.state_dict())
    return [*found, told(lambda: new.collect(h[rows], some(rows)))]


def not_averaged(rank: int) -> list[str]:
    found = []
    for together in (True, False):
        mtl, net = engine(distributed=together), Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step() -> None:
            mtl.backward(net(data()[0][share(rank)]), some(share(rank)))  # noqa: B023

        found += [told(step)]
        optimizer.step()
        found += [told(step)]
    return found


def the_same_shares(rank: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            mtl = engine()
            mtl.backward(features(), data()[1])
            mtl.backward(features(), data()[1])
    return [str(one.message) for one in caught]


def heads_apart(rank: int) -> dict[str, Tensor]:
    """A head that one process changes is brought back by the next `update_prior`."""
    mtl, h = engine(), features()
    mtl.backward(h[share(rank)], some(share(rank)))
    if rank == 1:
        mtl.heads["b"].weight.data.add_(1.0)
    mtl.update_prior()
    return mtl.state_dict()


def resumed(rank: int) -> list[Tensor]:
    """A step that draws, at once and from a checkpoint: in both processes, and in one alone."""

    def made(**settings: Any) -> ba.BayesAgg:
        mtl = engine(estimator=gradients.MonteCarlo(4), **settings)
        return mtl if state is None else loaded(mtl, state)

    def step(mtl: ba.BayesAgg, rows: slice) -> Tensor:
        h = features()
        mtl.backward(h[rows], some(rows))
        assert h.grad is not None
        return h.grad[share(rank)]

    state = None
    torch.manual_seed(rank)
    first = made(warmup_epochs=1)
    step(first, share(rank))
    first.update_prior()
    step(first, share(rank))
    state = first.state_dict()
    grads = [step(mtl, share(rank)) / 2 for mtl in (first, made())]
    return [*grads, step(made(distributed=False), WHOLE)]


def loaded(mtl: ba.BayesAgg, state: dict[str, Any]) -> ba.BayesAgg:
    mtl.load_state_dict(state)
    return mtl


def cut_up(rank: int) -> list[str]:
    mtl, h = engine(), features()
    fully_shard(mtl)
    return [told(lambda: mtl.refit([(h[share(rank)], some(share(rank)))]))]


def gone(rank: int) -> list[str]:
    """The second process ends in the middle; the first has its state still."""
    mtl, h = engine(), features()
    mtl.backward(h[share(rank)], some(share(rank)))
    grad, before = h.grad, mtl.state_dict()
    if rank == 1:
        return []
    found = told(lambda: mtl.backward(h[share(rank)], some(share(rank))))
    assert h.grad is grad
    after = mtl.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    return [found]


CALLS = [
    loader_fails,
    deferred,
    other_calls,
    other_scalers,
    other_engines,
    other_states,
    not_averaged,
    the_same_shares,
    heads_apart,
    resumed,
    cut_up,
]
EQUAL = [labels_left_out, heads_that_read_apart, batches_used_up, watched_in_one]


def work_of_four(rank: int) -> dict[str, Tensor]:
    return trained(BOTH, rank)


def work(rank: int) -> dict[str, Any]:
    found = {kind: trained(kind, rank) for kind in BACKBONES}
    found |= {one.__name__: one(rank) for one in [*EQUAL, *CALLS]}
    return {**found, "gone": gone(rank)}  # after this there is no group


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return ranks.run(work, 2)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(mine: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    own = {k: v for k, v in mine.items() if "generator" not in k}  # alone has none
    assert own.keys() == alone.keys()
    for name, value in alone.items():
        if name.endswith("state.entries"):
            continue
        torch.testing.assert_close(mine[name], value, rtol=1e-8, atol=1e-9, equal_nan=True)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", BACKBONES)
def test_backbones_take_the_step_of_one_process(found: list[Any], kind: str) -> None:
    alone = trained(kind, None)
    for mine in found:
        close(mine[kind], alone)


@pytest.mark.usefixtures("double")
def test_data_and_tensor_parallel_together() -> None:
    alone = trained(BOTH, None)
    for mine in ranks.run(work_of_four, 4):
        close(mine, alone)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("case", EQUAL)
def test_shares_may_lack_labels_and_batches(found: list[Any], case: Callable[..., Any]) -> None:
    alone = case(None)
    for mine in found:
        close(mine[case.__name__], alone)


def both(found: list[dict[str, Any]], case: str, *texts: str) -> None:
    """Every process is told these, in this order; an empty text stands for a call that went."""
    for mine in found:
        assert len(mine[case]) == len(texts), mine[case]
        for said, text in zip(mine[case], texts, strict=True):
            assert text in said if text else not said, said


def test_what_fails_in_one_process_is_told_to_all(found: list[Any]) -> None:
    first, second = (mine["loader_fails"] for mine in found)
    assert second == ["OSError: a file is gone", "", "False"]
    assert "StateError: process 1 refused its share of the batch or failed" in first[0]
    assert first[1:] == second[1:]
    both(found, "deferred", "NonFiniteError: a batch since", "")


def test_calls_that_do_not_belong_together_are_refused_by_all(found: list[Any]) -> None:
    calls = "process 0: backward, training, warm-up, validate=auto; process 1: "
    first, second = (mine["other_calls"] for mine in found)
    for said in (first, second):
        assert calls + "update_prior(), training" in said[0]
        assert calls + "backward, evaluation" in said[1]
        assert "process 0: update_prior(), t" in said[3]
        assert "process 1: update_prior(batches), t" in said[3]
        assert said[4] == ""
    assert "StateError: the features need no gradient" in first[2]
    assert "StateError: process 0 refused" in second[2]
    both(
        found,
        "other_scalers",
        "validate=auto, scaler of scale 8; process 1: backward, training, warm-up, validate=auto)",
        "scaler of scale 4; process 1: backward, training, warm-up, validate=auto, scaler of sca",
        "",
        "",
    )
    both(
        found,
        "other_engines",
        "engines differ in heads: process 0: [('a', Gaussian(in_features=4, tasks=2, bias=False",
        "the processes' engines differ in heads: process 0: [('a', Gaussian(",
        "engines differ in inference: process 0: [TaylorGGN(structure='full')]; process 1: [Lapl",
        "engines differ in working_memory: process 0: 10; process 1: None. Make the same engine",
    )


def test_processes_begin_from_one_state(found: list[Any]) -> None:
    both(found, "other_states", "begin from different states, for one in '", "")
    for name, value in found[0]["heads_apart"].items():
        assert torch.equal(value, found[1]["heads_apart"][name])


def test_a_checkpoint_serves_another_number_of_processes(found: list[Any]) -> None:
    for at_once, later, alone in (mine["resumed"] for mine in found):
        assert torch.equal(at_once, later)
        torch.testing.assert_close(alone, at_once, rtol=1e-8, atol=1e-12)


def test_nothing_is_silently_wrong(found: list[Any]) -> None:
    both(found, "not_averaged", "", "4 of 4 parameters of the backbone differ", "", "")
    both(found, "the_same_shares", *["each example counts 2 times"] * 2)
    both(found, "cut_up", "StateError: the heads are cut up")


def test_a_process_that_is_gone_is_named_as_such(found: list[Any]) -> None:
    (said,) = found[0]["gone"]
    assert "StateError: the processes could not exchange what they must: one has ended" in said


def test_distributed_is_checked() -> None:
    with pytest.raises(errors.SettingError, match="distributed must be True, False or a"):
        engine(distributed="yes")
