"""Three processes with a share of each batch take the steps of one process with the whole batch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bayesagg_pyro as ba
from bayesagg_pyro import heads
from bayesagg_pyro.errors import BayesAggError
from tests.library import ranks
from tests.swap.axes import AGGREGATIONS, HEADS, PRIORS, SCHEMES

WORLD = 3
#: Shares of 16 examples, by step: uneven ones, and one without any.
CUTS = [[0, 5, 12, 16], [0, 9, 9, 16]]
EPOCHS = 2

#: An argmax is found to the root of what rounding leaves of the maximum.
TOLERANCE = {"FullData, variance learned": 1e-6}
#: Which heads serve a scheme.
SLOW = ["NUTS", "HMC", "Variational"]  # and alike to all policies
HEADS_OF = {"Conjugate": "Gaussian", "IntegratedNoise": "Gaussian", "NUTS": "FromPyro"}


def engine(case: str) -> ba.BayesAgg:
    """Every scheme that a policy takes, on a head of its own; or every head."""
    if case == "heads":
        made = {name: make() for name, (make, _) in HEADS.items() if name != "FromPyro"}
        return ba.BayesAgg(made, generator=torch.Generator().manual_seed(0))
    policy, made, schemes = PRIORS[case], {}, {}
    for scheme, make in SCHEMES.items():
        if scheme in SLOW and case != "FullData":
            continue
        kind = HEADS_OF.get(scheme, "Bernoulli")
        head = HEADS[kind][0]()
        try:
            ba.BayesAgg({"only": head}, inference=make(), prior=policy())
        except BayesAggError:
            continue
        name = f"{scheme} {kind}"
        made[name], schemes[name] = HEADS[kind][0](), make()
    # Each policy with another aggregation.
    method = list(AGGREGATIONS.values())[list(PRIORS).index(case) % len(AGGREGATIONS)]
    return ba.BayesAgg(
        made,
        method(),
        inference=schemes,
        prior=policy(),
        generator=torch.Generator().manual_seed(0),
        keep_gradients=True,
    )


def kind_of(name: str) -> str:
    return HEADS[name.split()[-1]][1]


def data(names: list[str]) -> tuple[Tensor, dict[str, Any]]:
    """[2, 16, 6], and targets; the second process has no label of the first head's first task."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 6, generator=g)
    y = {}
    for at, name in enumerate(names):
        real = torch.randn(2, 16, 2, generator=g) + x[..., :2]
        y[name] = {
            "real": real,
            "one real": real[..., :1],
            "binary": (real > 0).double(),
            "class": real.abs().long().clamp(max=2),
            "count": real.abs().round(),
        }[kind_of(name)]
        if at == 0:
            mask = torch.rand(2, 16, 2, generator=g) > 0.3
            mask[0, CUTS[0][1] : CUTS[0][2], 0] = False
            y[name] = (y[name], mask, torch.rand(2, 16, generator=g))
    return x, y


def cut(batch: Any, step: int, rows: slice) -> Any:
    if isinstance(batch, dict):
        return {name: cut(one, step, rows) for name, one in batch.items()}
    if isinstance(batch, tuple):
        return tuple(cut(one, step, rows) for one in batch)
    return batch[step, rows]


def train(case: str, rank: int, world: int) -> dict[str, Tensor]:
    torch.manual_seed(rank)  # the first process's weights are everybody's
    backbone = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    mtl = engine(case).double()
    net = DistributedDataParallel(backbone) if world > 1 else backbone
    optimizer = torch.optim.SGD([*backbone.parameters(), *mtl.parameters()], lr=0.05)
    x, y = data(list(mtl.heads))

    def share(step: int) -> tuple[Tensor, Any]:
        rows = slice(*CUTS[step][rank : rank + 2]) if world > 1 else slice(None)
        return x[step, rows], cut(y, step, rows)

    found = {}
    for epoch, step in itertools.product(range(EPOCHS), range(2)):
        inputs, targets = share(step)
        optimizer.zero_grad()
        losses = mtl.backward(net(inputs), targets)
        found |= {f"loss {epoch} {step} {name}": loss for name, loss in losses.items()}
        found |= {f"grad {epoch} {step} {k}": p.grad for k, p in backbone.named_parameters()}
        optimizer.step()
        if step == 1:
            fresh = ((backbone(inputs), targets) for inputs, targets in map(share, range(2)))
            mtl.update_prior(fresh if case == "Fresh" else None)
            mtl.start_bayes()
    if mtl.info is not None and mtl.info.gradients is not None:
        found |= {"moments": mtl.info.gradients.mean, "variances": mtl.info.gradients.variance}
        result = mtl.info.aggregated
        if result is not None and result.weights is not None:
            found["weights"] = result.weights
    found |= {f"output {k}": v for k, v in mtl.predict(backbone(x[0])).items()}
    found |= {f"backbone.{k}": v for k, v in backbone.state_dict().items()}
    return {**found, **mtl.state_dict()}


def of_a_group(rank: int) -> dict[str, Tensor]:
    """The last two of three processes share a batch; copies of their engines do, too."""
    group = dist.new_group([1, 2]) if dist.is_initialized() else True
    if rank == 0:
        return {}
    torch.manual_seed(rank)
    mtl = copy.deepcopy(ba.BayesAgg({"r": heads.Gaussian(6)}, distributed=group).double())
    x = data([])[0][0]
    rows = [slice(0, 9), slice(9, 16)][rank - 1] if dist.is_initialized() else slice(None)
    mtl.collect(x[rows], {"r": x[rows, :1]})
    mtl.update_prior()
    return {k: v for k, v in mtl.state_dict().items() if k not in STREAMS}


class Text(nn.Module):
    """Features of tokens and of sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pool = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.embed(x).tanh()
        return tokens, self.pool(tokens.sum(1)).tanh()


def of_text(rank: int, world: int) -> dict[str, Tensor]:
    """Padded tokens beside sentences, and a further batch of tokens; one process without any."""
    torch.manual_seed(rank)
    text = Text()
    net = DistributedDataParallel(text) if world > 1 else text
    of = {"tag": heads.Bernoulli(4), "mood": heads.Gaussian(3), "span": heads.Gaussian(4, 2)}
    mtl = ba.BayesAgg(of).double()
    g = torch.Generator().manual_seed(1)
    x, span = torch.randn(6, 5, 6, generator=g), torch.randn(6, 5, 2, generator=g)
    tag, mood = (span[..., 0] > 0).double(), torch.randn(6, generator=g)
    real = torch.arange(5) < torch.tensor([5, 2, 3, 5, 1, 4])[:, None]
    rows = slice(*[0, 2, 6, 6][rank : rank + 2]) if world > 1 else slice(None)
    found = {}
    for step in range(3):
        text.zero_grad()
        tokens, sentence = net(x[rows])
        losses = mtl.backward(
            [
                (
                    {"tag": tokens, "mood": sentence},
                    {"tag": (tag[rows], real[rows]), "mood": mood[rows]},
                ),
                (tokens.flip(1), {"span": span[rows].flip(1)}),
            ]
        )
        found |= {f"loss {step} {name}": loss for name, loss in losses.items()}
        found |= {f"grad {step} {k}": p.grad for k, p in text.named_parameters()}
        mtl.update_prior()
        mtl.start_bayes()
    assert mtl.info is not None
    assert mtl.info.weights is not None
    state = {k: v for k, v in mtl.state_dict().items() if "generator" not in k}
    return {**found, **state, "weights": mtl.info.weights}


def work(rank: int) -> dict[str, dict[str, Tensor]]:
    found = {case: train(case, rank, WORLD) for case in CASES}
    return {**found, "group": of_a_group(rank), "text": of_text(rank, WORLD)}


STREAMS = ["state.streams.r.generator", "state.entries"]  # several processes need one
CASES = [*PRIORS, "heads"]


@pytest.fixture(scope="module")
def found() -> list[dict[str, dict[str, Tensor]]]:
    return ranks.run(work, WORLD)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_a_group_may_be_a_part_of_the_processes(found: list[Any]) -> None:
    alone = of_a_group(1)
    for mine in found[1:]:
        assert mine["group"].keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(mine["group"][name], value, msg=name)


@pytest.mark.usefixtures("double")
def test_heads_may_read_different_features_in_all_of_them(found: list[Any]) -> None:
    alone = of_text(0, 1)
    for mine in found:
        assert len(mine["text"]) > 30
        for name in alone.keys() - {"state.entries"}:
            torch.testing.assert_close(mine["text"][name], alone[name], msg=name)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("case", CASES)
def test_the_processes_take_the_step_of_one(found: list[Any], case: str) -> None:
    alone = train(case, 0, 1)
    first = found[0][case]
    for rank in range(WORLD):
        mine = found[rank][case]
        assert mine.keys() == alone.keys()
        for name, value in alone.items():
            if "generator" in name:
                assert torch.equal(mine[name], value), name
                continue
            torch.testing.assert_close(
                mine[name],
                value,
                rtol=TOLERANCE.get(case, 1e-8),
                atol=TOLERANCE.get(case, 1e-9),
                equal_nan=True,
                msg=lambda text, name=name: f"{name}: {text}",
            )
            assert torch.equal(mine[name].nan_to_num(), first[name].nan_to_num()), name
