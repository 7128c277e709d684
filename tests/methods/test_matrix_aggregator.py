"""Aggregators of TorchJD behind `MatrixAggregator`: the same results, without the traps."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesagg_pyro.aggregation import MatrixAggregator
from bayesagg_pyro.errors import (
    BayesAggError,
    DtypeError,
    NonFiniteError,
    NumericalError,
    ShapeError,
    StateError,
)

agg = pytest.importorskip("torchjd.aggregation")

T = 4
MAKE: dict[str, Callable[[], Any]] = {
    "AlignedMTL": agg.AlignedMTL,
    "CAGrad": lambda: agg.CAGrad(c=0.5),
    "ConFIG": agg.ConFIG,
    "Constant": lambda: agg.Constant(torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)),
    "DualProj": agg.DualProj,
    "ExcessMTL": agg.ExcessMTL,
    "FairGrad": lambda: agg.FairGrad(alpha=2.0),
    "GradDrop": agg.GradDrop,
    "GradVac": agg.GradVac,
    "IMTLG": agg.IMTLG,
    "Krum": lambda: agg.Krum(n_byzantine=1),
    "MGDA": agg.MGDA,
    "Mean": agg.Mean,
    "NashMTL": lambda: agg.NashMTL(n_tasks=T),
    "PCD": agg.PCD,
    "PCGrad": agg.PCGrad,
    "Random": agg.Random,
    "Sum": agg.Sum,
    "TrimmedMean": lambda: agg.TrimmedMean(1),
    "UPGrad": agg.UPGrad,
}
PERMUTABLE = sorted(set(MAKE) - {"GradVac", "PCGrad", "Random", "Constant", "PCD", "GradDrop"})


def matrix(seed: int = 0, columns: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, columns, dtype=torch.float64, generator=generator)


def direct(aggregator: Any, rows: Tensor, seed: int = 0) -> Tensor:
    """What TorchJD gives with the draws that `MatrixAggregator` takes, of this seed."""
    draw = torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(int(draw))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: Tensor = aggregator(rows)
    return result


def test_every_aggregator_is_tried() -> None:
    abstract = {"Aggregator", "WeightedAggregator", "GramianWeightedAggregator"}
    known = {name for name in agg.__all__ if not name.endswith("Weighting")} - abstract
    assert known == set(MAKE)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_torchjd(name: str, seed: int) -> None:
    rows = matrix(seed)
    expected = direct(MAKE[name](), rows)
    result = MatrixAggregator(MAKE[name]())(rows)
    torch.testing.assert_close(result.direction, expected, rtol=1e-6, atol=1e-8)
    if result.weights is not None:
        torch.testing.assert_close(result.weights @ rows, result.direction)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_law(name: str, factor: float) -> None:
    rows = matrix()
    degree = MatrixAggregator(MAKE[name]()).degree()
    scaled = MatrixAggregator(MAKE[name]())(rows * factor).direction
    assert scaled.abs().max() > 0
    if degree is None:  # remembers sizes, or limits the length
        assert name in ("ExcessMTL", "PCD")
    else:
        expected = MatrixAggregator(MAKE[name]())(rows).direction * factor**degree
        torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("sizes", [[1e-6] * T, [1e6] * T, [1e-6, 1.0, 1e6, 1e3]])
def test_nash_solves_the_bargain_at_any_length(sizes: list[float]) -> None:
    """α_i (G α)_i = 1, whose direction has length √T whatever the gradients' lengths."""
    rows = matrix() * torch.tensor(sizes, dtype=torch.float64)[:, None]
    result = MatrixAggregator(agg.NashMTL(n_tasks=T, max_norm=0.0))(rows)
    assert result.weights is not None
    bargain = result.weights * (rows @ rows.T @ result.weights)
    torch.testing.assert_close(bargain, torch.ones_like(bargain), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        result.direction.norm(), torch.tensor(T**0.5, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_nash_keeps_weights_between_solutions() -> None:
    ours = MatrixAggregator(agg.NashMTL(n_tasks=T, update_weights_every=3, max_norm=0.0))
    theirs = agg.NashMTL(n_tasks=T, update_weights_every=3, max_norm=0.0)
    for step in range(5):
        rows = matrix(step) * (1 + step)
        torch.testing.assert_close(ours(rows).direction, direct(theirs, rows), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", PERMUTABLE)
def test_order_of_tasks_does_not_matter(name: str) -> None:
    rows = matrix()
    order = torch.tensor([2, 0, 3, 1])
    one, two = MatrixAggregator(MAKE[name]())(rows), MatrixAggregator(MAKE[name]())(rows[order])
    torch.testing.assert_close(two.direction, one.direction, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("factor", [0.0, 1e-6, 1e6])
def test_unequal_gradients_stay_finite(name: str, factor: float) -> None:
    task = 2
    rows = matrix().to(torch.float64 if name == "Constant" else torch.float32)
    rows[task] *= factor
    result = MatrixAggregator(MAKE[name]())(rows)
    assert result.direction.isfinite().all()
    if name not in ("Krum", "MGDA") or factor:  # which choose the zero gradient
        assert result.direction.abs().max() > 0
    if factor == 0 and name in ("NashMTL", "FairGrad"):
        assert result.weights is not None
        assert result.weights[task] == 0
        assert (result.weights > 0).sum() == T - 1


@pytest.mark.parametrize("name", MAKE)
def test_all_zero_is_zero(name: str) -> None:
    assert not MatrixAggregator(MAKE[name]())(torch.zeros(T, 5)).direction.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", MAKE)
def test_bad_gradient_names_the_task(name: str, bad: float) -> None:
    rows = matrix()
    rows[2, 7] = bad
    with pytest.raises(NonFiniteError, match="gradient of task colour holds NaN"):
        MatrixAggregator(MAKE[name]())(rows, ["size", "shape", "colour", "weight"])
    with pytest.raises(NonFiniteError, match="gradient of task 2 holds NaN"):
        MatrixAggregator(MAKE[name]())(rows)


@pytest.mark.parametrize("name", sorted(set(MAKE) - {"Krum", "TrimmedMean", "Constant"}))
def test_one_task(name: str) -> None:
    row = matrix()[:1]
    aggregator = agg.NashMTL(n_tasks=1) if name == "NashMTL" else MAKE[name]()
    direction = MatrixAggregator(aggregator)(row).direction
    cosine = torch.nn.functional.cosine_similarity(direction, row[0], dim=0)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_nash_of_one_task_is_limited_in_length() -> None:
    torch.testing.assert_close(
        MatrixAggregator(agg.NashMTL(n_tasks=1, max_norm=0.5))(matrix()[:1]).direction.norm(),
        torch.tensor(0.5, dtype=torch.float64),
    )


def test_failure_names_aggregator_and_norms() -> None:
    with pytest.raises(NumericalError, match=r"Krum failed on gradients of norms \[5.7\]"):
        MatrixAggregator(agg.Krum(n_byzantine=1))(matrix()[:1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_direction_that_is_not_finite_names_aggregator_and_norms(bad: float) -> None:
    class Broken(agg.Aggregator):  # type: ignore[misc]
        def forward(self, matrix: Tensor, /) -> Tensor:
            return torch.cat([matrix[0, 1:], matrix.new_full((1,), bad)])

    with pytest.raises(NumericalError, match=r"Broken gave .* not finite .* norms \[5.0, 10.0\]"):
        MatrixAggregator(Broken())(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))


@pytest.mark.parametrize("name", ["CAGrad", "UPGrad", "DualProj"])
def test_tiny_gradients_meet_no_threshold(name: str) -> None:
    """TorchJD gives zeros or the mean below 1e-4; a conflict must be seen at any size."""
    rows = torch.tensor([[1.0, 0.0], [-3.0, 0.5]], dtype=torch.float64)
    make = MAKE[name]
    large = MatrixAggregator(make())(rows).direction
    tiny = MatrixAggregator(make())(rows * 1e-9).direction * 1e9
    torch.testing.assert_close(tiny, large)
    mean = rows.mean(0)
    assert not torch.allclose(large, mean, rtol=1e-2)
    spoilt = direct(make(), rows * 1e-9) * 1e9
    assert not torch.allclose(spoilt, large, rtol=1e-2)


def test_cagrad_keeps_the_mean_where_gradients_cancel() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    assert not direct(agg.CAGrad(c=0.5), rows).any()
    torch.testing.assert_close(MatrixAggregator(agg.CAGrad(c=0.5))(rows).direction, rows.mean(0))


@pytest.mark.parametrize("name", ["PCGrad", "GradVac", "GradDrop", "Random"])
def test_draws_come_from_the_generator(name: str) -> None:
    def run(seed: int) -> Tensor:
        rows = MatrixAggregator(MAKE[name](), generator=torch.Generator().manual_seed(seed))
        return torch.stack([rows(matrix(step)).direction for step in range(4)])

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = run(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(run(5), first)
    assert not torch.equal(run(6), first)


@pytest.mark.parametrize("name", ["PCGrad", "GradVac", "ExcessMTL", "NashMTL", "PCD", "GradDrop"])
def test_state_goes_on_where_it_was(name: str) -> None:
    def steps(rows: MatrixAggregator, first: int) -> Tensor:
        return torch.stack([rows(matrix(step)).direction for step in range(first, first + 3)])

    whole = MatrixAggregator(MAKE[name]())
    steps(whole, 0)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    other = MatrixAggregator(MAKE[name]())
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(steps(other, 3), steps(whole, 3))


def test_an_aggregator_of_the_users_own() -> None:
    class Largest(agg.Aggregator):  # type: ignore[misc]
        def forward(self, matrix: Tensor, /) -> Tensor:
            return matrix[matrix.norm(dim=1).argmax()]

    rows = matrix()
    rows[1] *= 3
    result = MatrixAggregator(Largest())(rows.requires_grad_())
    assert torch.equal(result.direction, rows[1])
    assert not result.direction.requires_grad
    assert result.weights is None


def test_errors() -> None:
    with pytest.raises(DtypeError, match=r"must be an object from torchjd.aggregation"):
        MatrixAggregator("UPGrad")
    with pytest.raises(ShapeError, match=r"\[tasks, n\]"):
        MatrixAggregator(agg.Mean())(torch.zeros(3))


DRAWING = {"GradDrop", "GradVac", "PCGrad", "Random"}


@pytest.mark.parametrize("name", sorted(MAKE))
def test_only_those_that_draw_use_the_generator(name: str) -> None:
    """So that a change of aggregator leaves the draws of others as they were."""
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    MatrixAggregator(MAKE[name](), generator=generator)(matrix())
    assert torch.equal(generator.get_state(), before) == (name not in DRAWING)


def test_one_task_without_labels_gets_nothing() -> None:
    found = MatrixAggregator(agg.MGDA())(matrix()[:1], present=torch.tensor([False]))
    assert torch.equal(found.direction, torch.zeros(30, dtype=torch.float64))


def test_the_memory_of_another_aggregator_is_refused_before_anything_changes() -> None:
    own, other = MatrixAggregator(agg.Random()), MatrixAggregator(agg.GradVac())
    before = own.state_dict()
    other(matrix())
    with pytest.raises(StateError, match="Random does not have"):
        own.load_state_dict(other.state_dict())
    after = own.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_settings_for_another_number_of_tasks_are_refused_with_a_task_left_out() -> None:
    present = torch.tensor([True, True, True, False])
    with pytest.raises(BayesAggError, match="PCD"):
        MatrixAggregator(agg.PCD(tau=torch.ones(T + 2)))(matrix(), present=present)


def test_what_weighs_for_an_aggregator_is_none() -> None:
    with pytest.raises(ShapeError, match=r"MeanWeighting gave \[2\] .*\[2, 3\].*not what weighs"):
        MatrixAggregator(agg.MeanWeighting())(torch.randn(2, 3))
