"""The RAND survey from a file of its format: reading, families, and four kinds of heads at once."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as laws

from bayesagg_pyro import heads
from experiments import methods
from experiments.errors import DataError, SettingsError
from experiments.methods.predictive import calibration, plug_in
from experiments.rand.benchmark import KINDS, Rand
from experiments.rand.survey import INPUTS, read, split
from experiments.run import Run
from experiments.scores.distributions import DistributionMeter, covered
from experiments.settings import Settings
from experiments.training import Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 families of one to three persons for three years each."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    person = 125_000
    for family in range(60):
        household = {name: round(float(rng.normal()), 3) for name in INPUTS}
        household |= {"site": family % 6 + 1, "income": 5000.0 + family, "educdec": ""}
        for _ in range(rng.integers(1, 4)):
            person += 1
            level = int(rng.integers(4))
            health = {
                name: int(level == k) for k, name in enumerate(("hlthg", "hlthf", "hlthp"), 1)
            }
            limited = 0.144292 if person % 10 == 0 else int(rng.random() < 0.3)
            for year in range(1, 4):
                visits = int(rng.poisson(2))
                spending = round(float(rng.normal(4, 1.5)), 4) if visits else ""
                rows.append(
                    {"zper": person, "year": year, **household, "xage": 30.5 + year, **health}
                    | {"physlm": limited, "mdvis": visits, "lnmeddol": spending, "plan": 3}
                )
    file = tmp_path_factory.mktemp("rand") / "randhie.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_targets_are_no_inputs_and_holes_are_kept(survey: Path) -> None:
    found = read(survey)
    assert found.inputs.shape == (len(found), 26)
    assert not set(INPUTS) & {"mdvis", "hlthg", "hlthf", "hlthp", "physlm", "lnmeddol", "income"}
    assert found.inputs[:, list(INPUTS).index("educdec")].isnan().all()
    assert torch.equal(found.spending.isnan(), found.visits == 0)
    assert torch.equal(found.limited.isnan(), found.persons % 10 == 0)
    assert set(found.health.tolist()) == {0, 1, 2, 3}
    assert torch.equal(found.inputs[:, -5:].sum(1), torch.ones(len(found)).double())
    data = Rand(data=str(survey)).load(CPU)
    (train,) = data.train.batches(10**6)
    assert train.inputs.isfinite().all()
    assert train.targets["spending"].nanmean().abs() < 1e-6


def test_families_are_in_one_part(survey: Path) -> None:
    found = read(survey)
    seen = []
    for seed in (0, 0, 1):
        rows = split(found, seed)
        every = torch.cat(list(vars(rows).values()))
        assert torch.equal(every.sort().values, torch.arange(len(found)))
        for column in (found.families, found.persons):
            kinds = [set(column[part].tolist()) for part in vars(rows).values()]
            assert len(set.union(*kinds)) == sum(map(len, kinds))
        shares = [len(part) / len(found) for part in vars(rows).values()]
        assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.05)
        seen.append(rows.test)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def with_value(text: str, column: str, value: str) -> str:
    """The file with another value in its first row."""
    names, first, *rest = text.splitlines()
    cells = dict(zip(names.split(","), first.split(","), strict=True)) | {column: value}
    return "\n".join([names, ",".join(cells.values()), *rest])


def test_what_is_wrong_is_named(survey: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*randhie\.csv of statsmodels"):
        read(tmp_path / "absent.csv")
    text = survey.read_text()
    for content, message in (
        (text.replace("mdvis", "visits"), "no column 'mdvis'"),
        (text.replace("plan", "mdvis"), "2 columns are named 'mdvis'"),
        (text.strip().rpartition(",")[0], r"line \d+: \d+ cells instead of \d+"),
        (text.strip() + ",9", r"line \d+: \d+ cells instead of \d+"),
        (text.partition("\n")[0] + "\n", "no rows"),
        (text.replace("5000.0", "", 1), "column 'income' has holes"),
        (text.replace("5000.0", "much", 1), "much"),
        (with_value(text, "hlthg", "0.5"), "line 2: hlthg is 0.5"),
        (with_value(text, "site", "9"), "line 2: site is 9"),
        (with_value(text, "xage", "inf"), "line 2: xage is inf"),
        (with_value(text, "mdvis", "2.5"), "line 2: mdvis is 2.5"),
        (with_value(text, "hlthp", ""), "column 'hlthp' has holes"),
    ):
        (tmp_path / "bad.csv").write_text(content)
        with pytest.raises(DataError, match=message):
            read(tmp_path / "bad.csv")
    with pytest.raises(SettingsError, match="counts = 'normal'"):
        Rand(counts="normal")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", ["ls", "stl", "imtl-g", "bayesagg", "ensemble-heads", "ensemble-networks"]
)
def test_four_kinds_of_heads_train_together(method: str, survey: Path, tmp_path: Path) -> None:
    benchmark = Rand(data=str(survey), width=8, layers=1)
    settings = Settings(epochs=2, batch_size=128, learning_rate=1e-2, device="cpu", head_bias=True)
    given = {"members": 2} if method.startswith("ensemble") else {}
    options = methods.options(method, given, benchmark.method_options)
    record = Trainer(Run(benchmark, method, options, settings), tmp_path).train()
    best = record["best"]
    assert list(best["test"]) == list(KINDS)
    assert all(value is not None and math.isfinite(value) for value in best["test"].values())
    figures = best["test_figures"]
    assert {"R² visits", "accuracy health", "AUC limited", "R² spending"} <= set(figures)
    assert {"coverage visits", "ECE health", "ECE limited", "coverage spending"} <= set(figures)
    assert figures["NLL health"] == pytest.approx(best["test"]["health"], rel=1e-4)


def test_densities_and_coverage_against_torch_and_draws() -> None:
    g = torch.Generator().manual_seed(0)
    mean, y = torch.randn(4000, 1, generator=g), torch.randn(4000, 1, generator=g)
    y = mean + 2 * y
    rate = (mean / 2).exp()
    counts = torch.poisson(rate, generator=g)
    holes = y.masked_fill(torch.rand(y.shape, generator=g) < 0.2, math.nan)
    meter = DistributionMeter({"y": "number", "n": "count"})
    law, of_counts = laws.Normal(mean, 2.0), laws.Poisson(rate)
    meter.update({"y": law, "n": of_counts}, {"y": holes, "n": counts})
    seen = ~holes.isnan()
    expected = [-law.log_prob(y)[seen].mean(), -of_counts.log_prob(counts).mean()]
    assert meter.compute() == pytest.approx([float(value) for value in expected], rel=1e-6)
    figures = meter.figures()
    # Standard errors are about 0.5; intervals twice as wide as they should be cover 99.9 %.
    assert figures["coverage y"] == pytest.approx(90, abs=2)
    assert figures["coverage n"] == pytest.approx(90, abs=2)
    assert covered(laws.Normal(mean, 4.0), y, False).mean() > 0.99
    assert covered(laws.Poisson(rate * 3), counts, True).mean() < 0.8
    r2 = 100 * (1 - (y - mean)[seen].square().mean() / y[seen].var(correction=0))
    assert figures["R² y"] == pytest.approx(float(r2), rel=1e-5)


def test_plug_in_widths_have_the_highest_likelihood() -> None:
    g = torch.Generator().manual_seed(0)
    f = torch.randn(3000, 1, generator=g)
    y = f + 0.5 * torch.randn(3000, 1, generator=g)
    label = (torch.rand(3000, 1, generator=g) < torch.sigmoid(f)).float()
    y[::7], label[::5] = math.nan, math.nan
    both = {
        "y": heads.Gaussian(1, missing="nan", standardise=False),
        "label": heads.Bernoulli(1, missing="nan"),
        "level": heads.Ordinal(1, 3, cutpoints=[-1.5, 3.0]),
        "n": heads.Poisson(1),
    }
    outputs = {"y": f, "label": 3 * f, "level": 3 * f, "n": f}
    truth = heads.Ordinal(1, 3, cutpoints=[-0.5, 1.0]).likelihood(f)
    level = torch.multinomial(truth.probs[:, 0], 1, generator=g)
    targets = {"y": y, "label": label, "level": level, "n": torch.poisson(f.exp(), generator=g)}
    found = calibration(both, [(outputs, targets)])
    masked = {**targets, "y": (y.nan_to_num(), ~y.isnan())}
    assert calibration(both, [(outputs, masked)])["y"] == found["y"]
    assert set(found) == {"y", "label", "level"}
    assert found["level"].item() == pytest.approx(3, rel=0.15)
    tempered = plug_in(both["level"], outputs["level"], found["level"]).probs
    assert (tempered - truth.probs).abs().max() < 0.03
    assert found["y"].item() == pytest.approx(float((y - f).square().nanmean().sqrt()), rel=1e-6)
    assert found["label"].item() == pytest.approx(3, rel=0.15)
    assert plug_in(both["y"], f, found["y"]).stddev[0].item() == pytest.approx(found["y"].item())
    assert torch.allclose(plug_in(both["n"], f).mean, f.double().exp())
    nothing = torch.full_like(y, math.nan)  # neither a noise of NaN nor a temperature of 0.1
    unseen = calibration(both, [(outputs, {**targets, "y": nothing, "label": nothing})])
    assert (unseen["y"].item(), unseen["label"].item()) == (1, 1)
