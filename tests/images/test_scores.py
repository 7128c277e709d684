"""Metrics of classification against scikit-learn and by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from experiments.errors import DataError
from experiments.rows import log_frequencies, log_odds, standardised, stratified
from experiments.scores import (
    AreaUnderCurve,
    AveragePrecision,
    BinaryAccuracy,
    ClassAccuracy,
    Largest,
    MeanOverTasks,
    MeanSquaredError,
    Score,
    area_under_curve,
    mixed,
)
from experiments.scores.calibration import Calibration


@pytest.mark.parametrize("levels", [3, 20, 10**6])
def test_rankings_are_scored_as_by_scikit_learn(levels: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    g = torch.Generator().manual_seed(levels)
    scores = (torch.rand(500, 4, generator=g) * levels).floor()
    targets = (torch.rand(500, 4, generator=g) < torch.tensor([0.5, 0.1, 0.01, 0.9])).float()
    for kind, oracle in (
        (AreaUnderCurve, metrics.roc_auc_score),
        (AveragePrecision, metrics.average_precision_score),
    ):
        meter = kind()
        for a, b in zip(scores.split(64), targets.split(64), strict=True):
            meter.update(a, b)
        for k, value in enumerate(meter.compute()):
            assert value == pytest.approx(oracle(targets[:, k], scores[:, k]), abs=1e-9)


@pytest.mark.parametrize(
    "kind", [AreaUnderCurve, AveragePrecision, BinaryAccuracy, MeanSquaredError]
)
def test_what_was_not_observed_counts_nowhere(kind: type[Score]) -> None:
    g = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(200, 3, generator=g), (torch.randn(200, 3, generator=g) > 0)
    seen = torch.rand(200, 3, generator=g) > torch.tensor([0.1, 0.6, 1.0])
    holes = targets.float().masked_fill(~seen, math.nan)
    meter, mean = kind(), MeanOverTasks(kind)
    for a, b in zip(scores.split(64), holes.split(64), strict=True):
        meter.update(a, b)
        mean.update(a, b)
    expected = []
    for k in range(2):
        alone = kind()
        alone.update(scores[seen[:, k], k, None], targets[seen[:, k], k, None].float())
        expected += alone.compute()
    assert meter.compute() == [*map(pytest.approx, expected), None]
    assert mean.compute() == [pytest.approx(100 * sum(expected) / 2)]


def test_classes_below_0_were_not_observed() -> None:
    g = torch.Generator().manual_seed(0)
    logits, classes = torch.randn(60, 3, generator=g), torch.randint(3, (60, 1), generator=g)
    seen = torch.rand(60, generator=g) < 0.5
    marked = torch.where(seen[:, None], classes, -100)
    for make in (ClassAccuracy, partial(Calibration, ["kind"], "classes")):
        whole, few = make(), make()
        whole.update(logits, marked)
        few.update(logits[seen], classes[seen])
        assert whole.compute() == pytest.approx(few.compute())
    assert torch.equal(log_frequencies(marked, 3), log_frequencies(classes[seen], 3))


def test_a_class_that_does_not_occur_has_no_area() -> None:
    """None: neither 0, which would pass for the worst network, nor NaN, the mark of a lost one."""
    meter = AreaUnderCurve()
    meter.update(torch.randn(6, 3), torch.tensor([[0.0, 1.0, 1.0]] * 5 + [[0.0, 1.0, 0.0]]))
    values = meter.compute()
    assert values[:2] == [None, None]
    assert isinstance(values[2], float)
    nan = torch.tensor([1.0, math.nan, 2.0])
    assert math.isnan(area_under_curve(nan, torch.tensor([True, False, False])) or 0.0)
    assert area_under_curve(nan, torch.tensor([True, True, True])) is None


def test_accuracies_by_hand() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0], [-1.0, -2.0, -3.0], [0.5, 1.0, -1.0]])
    one_hot = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    binary, largest, classes = BinaryAccuracy(), Largest(), ClassAccuracy()
    binary.update(logits, one_hot)
    largest.update(logits, one_hot)
    classes.update(logits, one_hot.argmax(1, keepdim=True))
    assert binary.compute() == pytest.approx([100 / 3, 200 / 3, 100])
    assert largest.compute() == pytest.approx([200 / 3])
    assert classes.compute() == largest.compute()


def test_a_lost_network_is_not_merely_a_wrong_one() -> None:
    nan = torch.full((2, 3), math.nan)
    for meter, targets in (
        (BinaryAccuracy(), torch.ones(2, 3)),
        (Largest(), torch.ones(2, 3)),
        (ClassAccuracy(), torch.zeros(2, 1, dtype=torch.int64)),
        (MeanSquaredError(), torch.zeros(2, 3)),
    ):
        meter.update(nan, targets)
        assert all(math.isnan(value or 0.0) for value in meter.compute())


def test_mixed_meter_keeps_the_order_of_heads() -> None:
    make = mixed({"b": MeanSquaredError, "a": BinaryAccuracy}, {"top": ("a", Largest)})
    meter = make()
    for _ in range(2):
        meter.update(
            {"a": torch.tensor([[1.0, -1.0]]), "b": torch.tensor([[3.0]])},
            {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([[1.0]])},
        )
    assert meter.compute() == [4.0, 100.0, 0.0]
    assert meter.figures() == {"top": 100.0}
    with pytest.raises(DataError, match="empty split"):
        make().compute()


def test_constants_have_the_smallest_loss() -> None:
    targets = torch.tensor([[1.0, 0.0]] * 30 + [[0.0, 0.0]] * 70 + [[math.nan, math.nan]] * 9)
    assert torch.sigmoid(log_odds(targets)).tolist() == pytest.approx([31 / 102, 1 / 102])
    classes = torch.tensor([0] * 6 + [2] * 2)[:, None]
    assert log_frequencies(classes, 3).exp().tolist() == pytest.approx([7 / 11, 1 / 11, 3 / 11])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_column_that_never_varies_in_training_is_not_blown_up(dtype: torch.dtype) -> None:
    """A mean of 0.1 is not 0.1 to the last bit."""
    values = torch.full((1000, 1), 0.1, dtype=dtype)
    values[-1] = 0.15
    scaled, _, _ = standardised(values, torch.arange(900))
    torch.testing.assert_close(scaled[-1], values[-1] - values[0])


def test_stratified_parts() -> None:
    g = torch.Generator().manual_seed(0)
    ages = torch.cat(
        [torch.full((n,), age) for age, n in ((1, 400), (2, 95), (30, 13), (77, 1), (80, 2))]
    )
    ages = ages[torch.randperm(len(ages), generator=g)]
    parts = stratified(ages, seed=3)
    together = torch.cat([parts.train, parts.validation, parts.test])
    assert torch.equal(together.sort().values, torch.arange(len(ages)))
    assert abs(len(parts.train) - 0.7 * len(ages)) <= 7
    for age, count in ((1, 400), (2, 95), (30, 13)):
        for rows, share in ((parts.train, 0.7), (parts.validation, 0.1), (parts.test, 0.2)):
            # Only the two blocks at the ends of a run are shared with its neighbours.
            assert (
                abs((ages[rows] == age).sum() - share * count) <= 2 * 10 * share * (1 - share) + 1
            )
    again, other = stratified(ages, seed=3), stratified(ages, seed=4)
    assert torch.equal(again.test, parts.test)
    assert not torch.equal(other.test, parts.test)
