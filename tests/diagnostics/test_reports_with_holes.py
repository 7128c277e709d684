"""Diagnostics of a batch without any label of one task, and with few of another: absent, not 0."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import bayesagg_pyro as ba
from bayesagg_pyro import aggregation, diagnostics, gradients, heads, priors
from bayesagg_pyro.gradients import GradientDistribution

pytest.importorskip("matplotlib")


class World:
    """Three regressions and two binary tasks; the second of each has no label in the batch."""

    def __init__(self, rule: aggregation.Aggregation | None = None) -> None:
        rng = torch.Generator().manual_seed(0)
        self.h = torch.randn(40, 5, generator=rng)
        self.y = {
            "level": torch.randn(40, 3, generator=rng),
            "flag": (torch.rand(40, 2, generator=rng) < 0.5).float(),
        }
        self.heads = {
            "level": heads.Gaussian(5, tasks=3, missing="nan"),
            "flag": heads.Bernoulli(5, tasks=2, missing="nan"),
        }
        self.mtl = ba.BayesAgg(self.heads, rule or aggregation.PrecisionWeighted(), reduction="sum")
        self.mtl.backward(self.h.clone().requires_grad_(), self.y)
        self.mtl.update_prior()
        self.mtl.start_bayes()
        self.holes = {name: value.clone() for name, value in self.y.items()}
        self.holes["level"][:, 1] = self.holes["flag"][:, 1] = torch.nan
        self.holes["level"][::2, 0] = torch.nan

    def gradient(self) -> GradientDistribution:
        priors_ = self.mtl.priors()
        return gradients.cat(
            {
                name: gradients.distribution(head, priors_[name], self.h, self.holes[name])
                for name, head in self.heads.items()
            }
        )


def test_a_record_has_null_for_what_was_not_there(tmp_path: Path) -> None:
    world = World()
    diagnostics.Recorder(
        world.mtl, tmp_path / "r.jsonl", every=1,
        fresh=lambda: (world.h, world.holes),
        base={name: priors.isotropic(head, 1.0) for name, head in world.heads.items()},
    )  # fmt: skip
    world.mtl.backward(world.h.clone().requires_grad_(), world.holes)
    (row,) = diagnostics.read(tmp_path / "r.jsonl")
    columns = ("loss", "snr", "weight", "weight_low", "share", "first_order", "stale_cost")
    for column in columns:
        for task in ("level.1", "flag.1"):
            assert row[f"{column}/{task}"] is None, column
        for task in ("level.0", "level.2", "flag.0"):
            assert row[f"{column}/{task}"] is not None, column
    assert row["uncertainty_pull/level.1"] is None
    assert row["observed_tasks"] == 3
    assert 1 <= row["effective_tasks"] <= 3
    for column in ("cosine_mean", "cosine_min", "conflict_max"):
        assert row[column] is not None
    diagnostics.plot_record([row], "aggregation")


@pytest.mark.parametrize(
    "rule", [aggregation.PrecisionWeighted(0.0), aggregation.Mean(), aggregation.Sum()], ids=str
)
def test_weights_are_of_examples_with_a_label(rule: aggregation.Aggregation) -> None:
    grad = World().gradient()
    found = diagnostics.weights(grad, rule.aggregate(grad))
    share = 1.0 if rule.reduction == "sum" else 0.2
    nan = math.nan
    expected = torch.tensor([share, nan, share, share, nan]).double()
    for values in (found.mean, found.quantiles[0], found.quantiles[2], found.by_dimension[:, 0]):
        torch.testing.assert_close(values, expected, equal_nan=True)
    assert found.by_example[0, 0].isnan()
    assert float(found.effective_tasks) == pytest.approx(3)
    assert found.observed_tasks == 3
    (check,) = found.checks()
    assert check.value == pytest.approx(1)


def test_pairs_are_judged_on_the_examples_they_share() -> None:
    grad = World().gradient()
    found = diagnostics.conflicts(grad)
    for values in (found.cosine, found.scaled, found.against, found.along):
        assert values[1].isnan().all()
        assert values[:, 4].isnan().all()
        assert values[0, 2].isfinite()
    both = grad.mean[:, 1::2].double().flatten(1)
    expected = torch.nn.functional.cosine_similarity(both[0], both[2], dim=0)
    torch.testing.assert_close(found.cosine[0, 2], expected)
    assert not math.isnan(found.checks()[0].value)


def test_changes_and_shares() -> None:
    grad = World().gradient()
    found = diagnostics.update(grad, aggregation.PrecisionWeighted().aggregate(grad))
    assert found.shares is not None
    for values in (found.shares, found.change, found.change_of_mean):
        assert values.isnan().tolist() == [False, True, False, False, True]
    torch.testing.assert_close(found.shares.nansum(), torch.tensor(1.0).double(), atol=1e-5, rtol=0)
    assert not any(math.isnan(check.value) for check in found.checks())


def test_sampled_shapes_and_moments_have_no_zeros() -> None:
    grad = World().gradient()
    generator = torch.Generator().manual_seed(0)
    sampled = diagnostics.moments(grad, draws=200, generator=generator)
    shape = diagnostics.normality(grad, draws=200, generator=generator)
    assert grad.observed is not None
    for values in (sampled.mean_z, sampled.variance_z, shape.skewness, shape.energy):
        assert values[~grad.observed].isnan().all()
        assert values[grad.observed].isfinite().all()
    figure = diagnostics.plot_gradients(
        [*"abcde"], diagnostics.signal_to_noise(grad), shape, sampled
    )
    drawn = figure.axes[2].patches[0].get_xy()[:, 1].max()  # type: ignore[attr-defined]
    assert drawn < 1.5  # no spike of unobserved entries at 0


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("rule", [None, aggregation.PrecisionWeighted.paper()], ids=str)
def test_a_report_of_such_a_batch(tmp_path: Path, rule: aggregation.Aggregation | None) -> None:
    world = World(rule)
    checks = diagnostics.report(tmp_path / "page.html", world.mtl, world.h, world.holes, draws=200)
    assert not any(math.isnan(check.value) for check in checks)
    named = [c.where for c in checks if c.key in ("snr", "share", "first_order", "conflict")]
    assert named
    assert not any("level.1" in where or "flag.1" in where for where in named)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert " of 3 with a target" in text


@pytest.mark.usefixtures("undrawn")
def test_a_report_without_any_label_of_a_head(tmp_path: Path) -> None:
    world = World()
    world.holes["flag"][:] = torch.nan
    checks = diagnostics.report(tmp_path / "page.html", world.mtl, world.h, world.holes, draws=200)
    assert not any(check.key == "ece" for check in checks)
    assert "no target is observed" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_units_do_not_vary_over_one_example() -> None:
    """The figure's deviations are those that `live` counts; of one example, 0 and not NaN."""
    h = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    figure = diagnostics.plot_features(diagnostics.spectrum(h), h)
    assert [bar.get_height() for bar in figure.axes[1].patches] == [0.0] * 4
