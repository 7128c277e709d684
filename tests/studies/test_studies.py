"""Results, figures, and what holds by construction."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bayesagg_pyro import heads, priors
from bayesagg_pyro.errors import StateError
from experiments.cli import app
from experiments.errors import SettingsError
from experiments.methods import BayesAggOptions
from experiments.studies import QUESTIONS
from experiments.studies.digits import ThreeTasks
from experiments.studies.priors import POLICIES
from experiments.studies.runs import KINDS, make
from experiments.studies.study import Table, summary
from experiments.tables.render import markdown

Run = Callable[[str], tuple[Path, dict[str, Any]]]
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", QUESTIONS)
def test_results_and_figures(study: Run, name: str) -> None:
    folder, results = study(name)
    assert results["study"] == name
    assert results["quick"] is True
    assert results["processor_seconds"] > 0
    assert results["tables"]
    for table, rows in results["tables"].items():
        assert rows, table
    pictures = sorted(folder.glob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 150_000
    assert (folder / "tables.md").read_text().count(" --: |")


def test_exact_schemes_are_no_distance_apart(study: Run) -> None:
    """A Gaussian head's posterior is quadratic: TaylorGGN and Laplace are Conjugate."""
    rows = {row["scheme"]: row for row in study("approximations")[1]["tables"]["digits-number"]}
    for name in ("Conjugate (exact)", "TaylorGGN", "Laplace"):
        row = rows[name]
        assert row["kl"] == pytest.approx(0.0, abs=1e-8)
        assert row["w2"] == pytest.approx(0.0, abs=1e-5)
        assert row["cosine"] == pytest.approx(1.0, abs=1e-6)
        assert row["norm"] == pytest.approx(1.0, abs=1e-5)
    assert rows["Delta"]["ratio"] == 0.0
    assert rows["Delta"]["sd_ratio"] == 0.0
    assert rows["Delta"]["kl"] is None
    # Independent weights of correlated ones: too narrow, and the variational one by its direction.
    for name in ("Laplace, diag", "Variational, diag"):
        assert rows[name]["ratio"] < 1
        assert rows[name]["kl"] > 1e-3


def test_laplace_is_nearer_the_posterior_than_one_newton_step(study: Run) -> None:
    """From a network trained two epochs, the point estimate is far from the mode."""
    rows = {row["scheme"]: row for row in study("approximations")[1]["tables"]["digits-100"]}
    assert rows["Laplace"]["mean_error"] < rows["TaylorGGN"]["mean_error"]
    assert rows["TaylorGGN"]["mean_error"] < rows["Delta"]["mean_error"]


def test_exact_schemes_are_calibrated(study: Run) -> None:
    rows = {row["case"]: row["passed"] for row in study("calibration")[1]["tables"]["calibration"]}
    assert rows == {
        "gaussian-conjugate": True, "bernoulli-laplace": rows["bernoulli-laplace"],
        "bernoulli-taylor": False,
    }  # fmt: skip


def test_a_constant_prior_is_not_in_step(study: Run) -> None:
    rows = {row["policy"]: row for row in study("priors")[1]["tables"]["priors"]}
    assert rows["constant"]["cost_number"] > 2 * rows["full-data"]["cost_number"]
    for row in rows.values():
        assert all(math.isfinite(row[key]) for key in ("mse", "loss", "cost_binary"))


def test_missing_labels_cost(study: Run) -> None:
    rows = study("missing")[1]["tables"]["missing"]
    for method in ("ls", "bayesagg", "mean"):
        full, few = (row["number"] for row in rows if row["method"] == method)
        assert few > full


def test_every_kind_of_head_is_trained(study: Run) -> None:
    rows = study("heads")[1]["tables"]["heads"]
    assert {row["kind"] for row in rows} == set(KINDS)
    assert all(math.isfinite(row["nll_number"]) for row in rows)
    by_kind = {row["kind"]: row["weights"] for row in rows if row["method"] == "bayesagg"}
    assert by_kind == {
        "linear": 3 * 33,
        "last-layer": 3 * 17,
        "all-parameters": 2 * 33 * 16 + 17 + 2 * 17,
        "gaussian-process": 3 * 32,
    }


def test_labels_go_missing_in_training_only() -> None:
    data = ThreeTasks(missing=0.9).load(CPU)
    whole = ThreeTasks().load(CPU)
    train, complete = (next(iter(d.train.batches(2000))) for d in (data, whole))
    assert set(train.targets) == {"regression", "binary"}
    for name, values in train.targets.items():
        hole = values.isnan()
        assert hole.float().mean().item() == pytest.approx(0.9, abs=0.02)
        assert torch.equal(values[~hole], complete.targets[name][~hole])
        assert not hole.all(0).any()
    for part in (data.validation, data.test):
        assert not any(v.isnan().any() for b in part.batches(500) for v in b.targets.values())
    again = next(iter(ThreeTasks(missing=0.9).load(CPU).train.batches(2000)))
    assert torch.equal(train.targets["binary"].isnan(), again.targets["binary"].isnan())


def test_a_task_keeps_at_least_one_label() -> None:
    train = next(iter(ThreeTasks(missing=0.99999).load(CPU).train.batches(2000)))
    for values in train.targets.values():
        assert torch.equal((~values.isnan()).sum(0), torch.ones(values.shape[1], dtype=torch.int64))


@pytest.mark.parametrize(
    "options",
    [{"missing": 1.0}, {"missing": -0.1}, {"kind": "tree"}, {"missing": 0.5, "kind": "last-layer"}],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="cannot work"):
        ThreeTasks(**options)


def test_heads_of_every_kind() -> None:
    torch.manual_seed(0)
    h = torch.randn(40, 6)
    for kind in KINDS:
        made = make(kind, 6, True)
        if kind == "gaussian-process":
            with pytest.raises(StateError, match="place"):
                made["regression"](h)
            continue
        assert made["regression"](h).shape == (40, 1)
        assert made["binary"](h).shape == (40, 2)


def test_policies_by_name() -> None:
    kinds = {
        name: type(BayesAggOptions(**options).policy()) for name, (options, _) in POLICIES.items()
    }
    assert kinds == {
        "full-data": priors.FullData,
        "evidence": priors.FullData,
        "running": priors.Running,
        "fresh": priors.Fresh,
        "fresh-third": priors.Fresh,
        "previous-batch": priors.PreviousBatch,
        "constant": priors.Constant,
    }
    for name in ("constant", "previous-batch"):
        with pytest.raises(SettingsError, match="never holds"):
            BayesAggOptions(prior=name, leave_batch_out=True)  # type: ignore[arg-type]
    base = BayesAggOptions(prior="constant", prior_variance=0.3).policy()
    started = base.start(heads.Gaussian(4), _scheme()).prior
    assert started is not None
    assert torch.allclose(started.variance, torch.full_like(started.variance, 0.3))


def _scheme() -> Any:
    from bayesagg_pyro.inference import Conjugate

    return Conjugate()


def test_summaries() -> None:
    assert summary([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}], ["x"]) == {"x": 2.0, "x_spread": 1.0}
    assert summary([{"x": 1.0}], ["x"]) == {"x": 1.0, "x_spread": None}
    table = Table(
        "t",
        {"name": ("n", ""), "x": ("x", ".1f")},
        [{"n": "a", "x": 1, "x_spread": 0.25}, {"n": "b"}],
    )
    assert table.cells(table.rows[0]) == ["a", "1.0 ± 0.2"]
    assert markdown(table.shown()).splitlines()[-1] == "| b | – |"


def test_an_unknown_study_is_one_line() -> None:
    found = CliRunner().invoke(app, ["study", "nothing"])
    assert found.exit_code == 2
    assert "approximations, priors, missing, heads, calibration" in " ".join(found.output.split())


@pytest.mark.parametrize("seed", [-1, 10**22])
def test_a_seed_that_cannot_be_is_one_line(seed: int) -> None:
    found = CliRunner().invoke(app, ["study", "calibration", "--quick", f"--first-seed={seed}"])
    assert found.exit_code != 0
    assert f"error: first_seed = {seed} cannot work" in found.output
