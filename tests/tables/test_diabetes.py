"""A small set with numbers and labels, and the table of what predictions of it are worth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributions as laws

from bayesagg_pyro import heads
from experiments import methods
from experiments.diabetes.benchmark import KINDS, Diabetes
from experiments.report.calibration import scores
from experiments.report.write import tables
from experiments.run import Run
from experiments.settings import Settings
from experiments.training import CHECKPOINT, Trainer


def test_the_table_tells_of_default_and_fitted_predictions(tmp_path: Path) -> None:
    benchmark = Diabetes(width=4)
    settings = Settings(epochs=2, batch_size=64, learning_rate=1e-2, device="cpu", head_bias=True)
    for method in ("ls", "bayesagg"):
        options = methods.options(
            method, {"pretrain": 1} if method == "bayesagg" else {}, benchmark.method_options
        )
        Trainer(Run(benchmark, method, options, settings), tmp_path / method).train()
    (table,) = tables(tmp_path, ["calibration"])
    assert [row.label for row in table.rows] == [
        f"{method}: {task}" for method in ("BayesAgg-MTL", "LS") for task in KINDS
    ]
    assert all(row.cells[0].mean == 88 for row in table.rows)
    ours, ours_high, plain, _ = table.rows
    assert (plain.cells[1].mean or 0) > 95  # unit noise
    assert 70 < (ours.cells[1].mean or 0) < 100
    assert all(60 < (row.cells[2].mean or 0) <= 100 for row in (ours, plain))
    assert str(ours.cells[3]) == "90.0 ± 3.2"
    assert str(ours_high.cells[1]) == "–"
    assert all(0 < (row.cells[k].mean or 0) < 0.5 for row in table.rows for k in (4, 5, 6))
    (tmp_path / "ls" / CHECKPOINT).unlink()  # to save disk
    with pytest.warns(match=r"left out of calibration: the run in .*ls has no checkpoint\.pt"):
        (table,) = tables(tmp_path, ["calibration"])
    assert [row.label for row in table.rows] == [f"BayesAgg-MTL: {task}" for task in KINDS]


@pytest.mark.parametrize("kind", ["number", "count", "binary", "classes"])
def test_scores_of_calibrated_predictions_are_those_of_chance(kind: str) -> None:
    g = torch.Generator().manual_seed(1)
    f = torch.randn(4000, 2, generator=g, dtype=torch.float64)
    head: heads.Head
    law: laws.Distribution
    targets: Tensor
    if kind == "number":
        head, law = heads.Gaussian(1, tasks=2), laws.Normal(f, 0.5)
        targets = f + 0.5 * torch.randn(f.shape, generator=g, dtype=torch.float64)
    elif kind == "count":
        head, law = heads.Poisson(1, tasks=2), laws.Poisson(f.exp())
        targets = torch.poisson(f.exp(), generator=g)
    elif kind == "binary":
        head, law = heads.Bernoulli(1, tasks=2), laws.Bernoulli(logits=2 * f)
        targets = torch.bernoulli(law.probs, generator=g)
    else:
        head = heads.Categorical(1, 3, tasks=2)
        law = laws.Categorical(logits=torch.stack([f, -f, 0 * f], -1))
        targets = torch.multinomial(law.probs.flatten(0, 1), 1, generator=g).reshape(f.shape)
    seen = torch.ones(f.shape, dtype=torch.bool)
    seen[::4, 0] = False
    first, second = scores(head, [(law, targets, seen)])
    assert first is not None
    assert second is not None
    assert (first.count, second.count) == (3000, 4000)
    assert max(first.error / first.chance, second.error / second.chance) < 1.2
    assert first.error > 0
    if kind in ("number", "count"):
        assert second.coverage == pytest.approx(90, abs=4 * 100 * math.sqrt(0.09 / 4000))
        wide = laws.Normal(f, 1.0) if kind == "number" else laws.Poisson(2 * f.exp())
    else:
        assert second.coverage is None
        wide = type(law)(logits=3 * law.logits)
    wrong = next(iter(scores(head, [(wide, targets, seen)])))
    assert wrong is not None
    assert wrong.error > 3 * wrong.chance
    (none, _) = scores(head, [(law, targets, seen & torch.tensor([False, True]))])
    assert none is None
