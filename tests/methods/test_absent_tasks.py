"""A task without labels in the batch neither stops nor bends the others, in any method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from two_tasks import QUICK

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, gradients, heads, priors
from bayesagg_pyro.aggregation import MatrixAggregator
from bayesagg_pyro.gradients import GradientDistribution
from experiments import methods
from experiments.methods import METHODS, Method
from experiments.methods.torchjd import names

agg = pytest.importorskip("torchjd.aggregation")

#: Need more tasks than are left, or one number for each task.
_MORE = {"torchjd:Krum", "torchjd:TrimmedMean"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "torchjd:Constant": {"weights": [1.0, 1.0, 1.0]},
    "torchjd:COSMOS": {"lambda_": 0.01},
    "nash-mtl": {"update_weights_every": 1},
    "ensemble-heads": {"members": 1},
    "ensemble-networks": {"members": 2},
}
#: Draw one number for each task, so that a problem with fewer draws others.
_DRAW = {"rlw", "igbv2"}
#: A preference vector over all tasks, of which a smaller problem has another.
_PREFERENCE = {"torchjd:PBI", "torchjd:STCH", "torchjd:COSMOS"}
EVERY = [*METHODS, *(name for name in names() if name not in _MORE)]
NAMES = ("first", "second", "third")
ABSENT = "second"
WIDTH = 6


def make(kept: tuple[str, ...] = NAMES) -> tuple[nn.Module, dict[str, heads.Head]]:
    generator = torch.Generator().manual_seed(5)
    backbone = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh()).double()
    found = {n: heads.Gaussian(WIDTH, bias=True, missing="nan").double() for n in NAMES}
    with torch.no_grad():
        for module in (backbone, *found.values()):
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return backbone, {name: found[name] for name in kept}


def build(name: str, kept: tuple[str, ...] = NAMES) -> Method:
    torch.manual_seed(0)
    given = {**QUICK.get(name, {}), **_OPTIONS.get(name, {})}
    if "weights" in given:
        given["weights"] = given["weights"][: len(kept)]
    method = methods.make(
        name, *make(kept), methods.options(name, given), another=lambda: make(kept)
    )
    if name == "torchjd:PBI":  # whose preference is in single precision
        method.scalarizer.weights = method.scalarizer.weights.double()  # type: ignore[attr-defined]
    method.train()
    return method


def batch(*absent: str) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = {n: torch.randn(12, 1, generator=generator, dtype=torch.float64) for n in NAMES}
    y["first"][:2] = torch.nan  # and one that is there in part
    return x, {n: torch.full_like(v, torch.nan) if n in absent else v for n, v in y.items()}


def updates(method: Method, targets: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    for parameter in method.parameters():
        parameter.grad = None
    losses = method.backward(batch()[0], targets)
    shared = method.backbone.parameters()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in shared], losses


@pytest.mark.parametrize("name", [name for name in EVERY if name not in _DRAW])
def test_the_update_is_that_of_the_problem_without_the_task(name: str) -> None:
    others = tuple(n for n in NAMES if n != ABSENT)
    targets = batch(ABSENT)[1]
    whole, fewer = build(name), build(name, others)
    if name == "bayesagg":
        for method in (whole, fewer):
            method.backward(batch()[0], {n: batch()[1][n] for n in method.mtl.heads})  # type: ignore[attr-defined]
            method.mtl.update_prior()  # type: ignore[attr-defined]
            method.mtl.start_bayes()  # type: ignore[attr-defined]
    found, losses = updates(whole, targets)
    expected, _ = updates(fewer, {n: targets[n] for n in others})
    if name == "stl":  # a network for each task
        count = len(list(make()[0].parameters()))
        found = found[:count] + found[2 * count :]
        assert len(expected) == len(found)
    if name in _PREFERENCE:  # their weights sum to 1 over all tasks
        parts = [torch.cat([g.flatten() for g in grads]) for grads in (found, expected)]
        assert nn.functional.cosine_similarity(*parts, dim=0) > 0.9
    else:
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    assert any(g.any() for g in found)
    if name != "bayesagg":
        assert losses[ABSENT].isnan().all()
        assert losses["first"].isfinite().all()


@pytest.mark.parametrize("name", EVERY)
def test_training_goes_on_through_every_pattern(name: str) -> None:
    """Two tasks, one, none, all: parameters move when there are labels, and stay finite."""
    method = build(name)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    for epoch in range(3):
        method.start_epoch(epoch)
        for absent in ((), ("second",), ("first", "third"), NAMES):
            before = [p.detach().clone() for p in method.backbone.parameters()]
            optimizer.zero_grad()
            method.backward(*batch(*absent))
            optimizer.step()
            after = list(method.backbone.parameters())
            assert all(p.isfinite().all() for p in method.parameters())
            if len(absent) < 3:
                moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
                assert any(moved), absent
        method.end_epoch(epoch)


@pytest.mark.parametrize("name", ["uw", "torchjd:UW", "torchjd:IMTLL", "torchjd:FAMO"])
def test_weights_that_are_learned_rest_without_labels(name: str) -> None:
    method = build(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    learned = lambda: (  # noqa: E731
        method.log_variance if name == "uw" else next(iter(method.scalarizer.parameters()))  # type: ignore[attr-defined]
    )
    before = learned().detach().clone()
    for _ in range(4):
        optimizer.zero_grad()
        method.backward(*batch(ABSENT))
        optimizer.step()
    moved = learned().detach() != before
    assert moved.tolist() == [True, False, True]


@pytest.mark.parametrize("name", ["dwa", "torchjd:DWA"])
def test_averages_are_over_batches_with_labels(name: str) -> None:
    """A task that half of the batches lack has the mean of the other half; weights follow it."""
    plain, holes = build(name), build(name)
    for epoch in range(2):
        for method, absent in ((plain, ()), (holes, (ABSENT,))):
            method.start_epoch(epoch)
            for missing in ((), absent):
                method.backward(*batch(*missing))
            method.end_epoch(epoch)
    one, two = (
        m._averages if name == "dwa" else m.scalarizer._previous_averages  # type: ignore[attr-defined]
        for m in (plain, holes)
    )
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("name", sorted(_DRAW))
def test_drawn_weights_sum_to_the_tasks_that_are_there(name: str) -> None:
    method = build(name)
    for p in method.parameters():
        p.grad = None
    seen: list[Tensor] = []
    found = method.total  # type: ignore[attr-defined]
    losses = torch.ones(3, dtype=torch.float64, requires_grad=True)
    total = found(losses, torch.tensor([True, False, True]))
    (weights,) = torch.autograd.grad(total, losses)
    seen.append(weights)
    assert weights[1] == 0
    torch.testing.assert_close(weights.sum(), torch.tensor(2.0, dtype=torch.float64))


AGGREGATORS: dict[str, Any] = {
    "AlignedMTL": agg.AlignedMTL,
    "CAGrad": lambda: agg.CAGrad(c=0.5),
    "ConFIG": agg.ConFIG,
    "DualProj": lambda: agg.DualProj(torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)),
    "FairGrad": lambda: agg.FairGrad(alpha=2.0),
    "GradDrop": agg.GradDrop,
    "GradVac": agg.GradVac,
    "IMTLG": agg.IMTLG,
    "MGDA": agg.MGDA,
    "Mean": agg.Mean,
    "NashMTL": lambda: agg.NashMTL(n_tasks=3),
    "PCGrad": agg.PCGrad,
    "Random": agg.Random,
    "Sum": agg.Sum,
    "UPGrad": agg.UPGrad,
}
OURS = {
    "PrecisionWeighted": aggregation.PrecisionWeighted,
    "dimension": lambda: aggregation.PrecisionWeighted(0.7, resolution="dimension"),
    "bounded": lambda: aggregation.PrecisionWeighted(1.0, floor=0.5, max_ratio=3.0),
    "paper": lambda: aggregation.PrecisionWeighted.paper(0.8),
    "full": lambda: aggregation.PrecisionWeighted.paper(covariance="full"),
    "Mean": aggregation.Mean,
    "Sum": aggregation.Sum,
}


def distribution(kept: tuple[int, ...], mask: Tensor) -> GradientDistribution:
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    parts = {}
    for task in kept:
        head = heads.Gaussian(4).double()
        posterior = priors.isotropic(head, 0.2 + task)
        targets = (y[:, task : task + 1], mask[:, task : task + 1])
        parts[str(task)] = gradients.distribution(head, posterior, h, targets)
    return gradients.cat(parts)


@pytest.mark.parametrize(
    ("kind", "name"), [("theirs", n) for n in AGGREGATORS] + [("ours", n) for n in OURS]
)
@pytest.mark.parametrize("per_sample", [False, True])
def test_aggregations_leave_the_task_out(kind: str, name: str, per_sample: bool) -> None:
    """Times the number of tasks (scale "sum" of the engine) the direction is the same without."""
    if per_sample and name == "full":
        return  # draws have no covariance
    mask = torch.ones(9, 3, dtype=torch.bool)
    mask[:4, 0] = False
    mask[:, 1] = False
    found = []
    draws = distribution((0, 1, 2), mask).sample((2,), generator=torch.Generator().manual_seed(3))
    for kept in ((0, 1, 2), (0, 2)):
        if kind == "ours":
            rule = OURS[name]()
        else:
            theirs = AGGREGATORS[name]()
            if len(kept) == 2 and name == "DualProj":
                theirs = agg.DualProj(torch.tensor([1.0, 2.0], dtype=torch.float64))
            if len(kept) == 2 and name == "NashMTL":
                theirs = agg.NashMTL(n_tasks=2)
            rule = aggregation.TorchJD(theirs)
        grad = distribution(kept, mask)
        if per_sample:  # of two draws that are the same for both
            full = draws[:, list(kept)]
            grad = GradientDistribution(
                grad.mean, grad.variance, grad.observed, grad.groups, grad.covariance,
                sampler=lambda count, generator, full=full: full,
            )  # fmt: skip
            rule = aggregation.PerSample(rule, samples=2)
        result = rule.aggregate(grad)
        times = len(kept) if rule.reduction == "mean" else 1
        found.append((result.direction * times, result.weights, result.effective_tasks))
    (one, weights, number), (two, _, fewer) = found
    assert one.norm() > 0
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    if weights is not None:
        assert not weights[1].any()
        torch.testing.assert_close(number, fewer, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["GradVac", "ExcessMTL", "PCD", "NashMTL"])
def test_what_is_remembered_of_an_absent_task_survives(name: str) -> None:
    made = {**AGGREGATORS, "ExcessMTL": agg.ExcessMTL, "PCD": agg.PCD}
    generator = torch.Generator().manual_seed(2)
    rows = MatrixAggregator(made[name]())
    matrix = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    present = torch.tensor([True, True, False])
    holes = torch.where(present[:, None], matrix, 0.0)
    first = rows(holes, present=present)  # before anything is remembered
    assert first.direction.norm() > 0
    rows(matrix)
    before = rows.state_dict()
    again = rows(holes, present=present)
    after = rows.state_dict()
    assert again.weights is not None
    assert again.weights[2] == 0
    own = {
        "GradVac": ["tensors.weighting.weighting._phi_t"],
        "ExcessMTL": [f"tensors.weighting.{n}" for n in ("_weights", "_sq_grad_sum", "_initial_w")],
        "PCD": ["tensors.weighting.weighting._sq_norm_ema"],
        "NashMTL": ["arrays.weighting.prvs_alpha"],
    }[name]
    for entry in own:
        old, new = (state[f"aggregator.{entry}"][2] for state in (before, after))
        if name == "PCD":  # an average that is corrected by the number of steps
            steps = "aggregator.tensors.weighting.weighting._n_steps"
            old, new = (
                value / (1 - 0.999 ** int(state[steps]))
                for value, state in ((old, before), (new, after))
            )
        torch.testing.assert_close(new, old)
    assert rows(matrix).direction.isfinite().all()


def test_an_engine_trains_on_domains_in_turn() -> None:
    """Batches of one task each, under an aggregator whose shortest vector is a task of zeros."""
    torch.manual_seed(0)
    backbone = nn.Linear(3, 5).double()
    mtl = ba.BayesAgg(
        {"y": heads.Gaussian(5, tasks=2, missing="nan")}, aggregation.TorchJD(agg.MGDA())
    ).double()
    x, y = torch.randn(16, 3).double(), torch.randn(16, 2).double()
    mtl.backward(backbone(x), {"y": y})
    mtl.update_prior()
    mtl.start_bayes()
    for task in (0, 1):
        backbone.zero_grad()
        holes = torch.full_like(y, torch.nan)
        holes[:, task] = y[:, task]
        mtl.backward(backbone(x), {"y": holes})
        assert backbone.weight.grad is not None
        assert backbone.weight.grad.norm() > 0
        assert mtl.info is not None
        assert float(mtl.info.observed_tasks) == 1  # type: ignore[arg-type]


MEMORIES: dict[str, Any] = {
    "GradVac": agg.GradVac,
    "ExcessMTL": agg.ExcessMTL,
    "ExcessMTL in warm-up": lambda: agg.ExcessMTL(n_warmup_steps=2),
    "PCD": agg.PCD,
}


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_of_the_others_grows_as_if_there_were_no_absent_task(name: str) -> None:
    whole, fewer = MatrixAggregator(MEMORIES[name]()), MatrixAggregator(MEMORIES[name]())
    present = torch.tensor([True, False, True])
    generator = torch.Generator().manual_seed(4)
    for _ in range(4):
        matrix = torch.randn(3, 20, generator=generator, dtype=torch.float64)
        found = whole(matrix * present[:, None], present=present).direction
        torch.testing.assert_close(found, fewer(matrix[present]).direction)


@pytest.mark.parametrize("name", ["ExcessMTL", "ExcessMTL in warm-up", "PCD"])
def test_memory_of_the_others_does_not_see_that_a_task_is_absent(name: str) -> None:
    """What is kept of each task by itself; of weights, which sum to 1, their ratio."""
    whole, holes = MatrixAggregator(MEMORIES[name]()), MatrixAggregator(MEMORIES[name]())
    generator = torch.Generator().manual_seed(4)
    for absent in (False, True, False):
        matrix = torch.randn(3, 20, generator=generator, dtype=torch.float64)
        present = torch.tensor([True, True, not absent])
        whole(matrix)
        holes(matrix * present[:, None], present=present)
    one, two = (
        {k: v for k, v in rows.state_dict().items() if v.shape[:1] == (3,)}
        for rows in (whole, holes)
    )
    assert one.keys() == two.keys() != set()
    for key, value in one.items():
        each = [v[:2] / v[0] if key.endswith("_weights") else v[:2] for v in (value, two[key])]
        torch.testing.assert_close(*each)


@pytest.mark.parametrize("name", MEMORIES)
def test_a_task_that_was_never_there_begins_as_the_others_are(name: str) -> None:
    rows = MatrixAggregator(MEMORIES[name]())
    generator = torch.Generator().manual_seed(4)
    matrix = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    present = torch.tensor([True, False, True])
    rows(matrix * present[:, None], present=present)
    memory = {k: v for k, v in rows.state_dict().items() if v.shape[:1] == (3,)}
    assert memory
    for key, value in memory.items():
        if key.endswith(("_phi_t", "_sq_grad_sum")):  # similarities, sums: none so far
            assert not value[1].any()
            assert not (key.endswith("_phi_t") and value[:, 1].any())
        else:
            torch.testing.assert_close(value[1], value[present].mean())
        if key.endswith("_weights"):
            torch.testing.assert_close(value.sum(), torch.ones(()).double())


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_made_in_inference_mode_is_merged(name: str) -> None:
    one, two = MatrixAggregator(MEMORIES[name]()), MatrixAggregator(MEMORIES[name]())
    generator = torch.Generator().manual_seed(4)
    matrix = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    present = torch.tensor([True, False, True])
    with torch.inference_mode():
        one(matrix.clone())
    two(matrix)
    found = [rows(matrix * present[:, None], present=present).direction for rows in (one, two)]
    assert torch.equal(*found)


def test_weights_that_were_all_on_the_absent_task_are_equal_ones() -> None:
    rows = MatrixAggregator(agg.ExcessMTL(robust_step_size=1e3))
    matrix = torch.tensor([[1.0, 2.0], [0.1, 0.0], [0.0, 0.1]], dtype=torch.float64)
    assert rows(matrix).weights.tolist() == [1.0, 0.0, 0.0]  # type: ignore[union-attr]
    present = torch.tensor([False, True, True])
    found = rows(matrix * present[:, None], present=present).weights
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64))
