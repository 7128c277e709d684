"""Figures by theme and the report."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import bayesagg_pyro as ba
from bayesagg_pyro import diagnostics, heads, inference, predictive
from bayesagg_pyro.aggregation import PrecisionWeighted
from bayesagg_pyro.diagnostics import Check
from bayesagg_pyro.diagnostics._report import predicted
from bayesagg_pyro.errors import SettingError, StateError

pytest.importorskip("matplotlib")


class World:
    def __init__(self, kill_units: bool = False) -> None:
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.kill = kill_units
        made: dict[str, heads.Head] = {
            "level": heads.Gaussian(8, tasks=2, noise_scale=0.3),
            "flag": heads.Bernoulli(8),
            "kind": heads.Categorical(8, classes=3),
        }
        self.mtl = ba.BayesAgg(made, PrecisionWeighted.paper(0.5))
        self.x = torch.randn(80, 5)
        level = self.x[:, :2].sin() + 0.3 * torch.randn(80, 2)
        kind = (self.x[:, 3] > 0.5).long() + (self.x[:, 3] > -0.5).long()
        self.y = {"level": level, "flag": (self.x[:, 2:3] > 0).float(), "kind": kind[:, None]}

    def features(self) -> torch.Tensor:
        h = self.net(self.x)
        return torch.cat([h[:, :3], 0 * h[:, 3:]], 1) if self.kill else h

    def train(self, epochs: int = 2) -> World:
        for epoch in range(epochs):
            if epoch == 1:
                self.mtl.start_bayes()
            self.mtl.backward(self.features(), self.y)
            self.mtl.update_prior()
        return self


def pictures(path: Path) -> list[bytes]:
    text = path.read_text(encoding="utf-8")
    return [base64.b64decode(data) for data in re.findall(r'base64,([^"]+)"', text)]


def by_key(checks: list[Check]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for check in checks:
        found[check.key] = found.get(check.key, False) or check.alarm
    return found


def test_one_page_with_everything(tmp_path: Path) -> None:
    world = World()
    diagnostics.Recorder(world.mtl, tmp_path / "record.jsonl", every=1)
    world.train()
    state = torch.random.get_rng_state()
    before = {name: value.clone() for name, value in world.mtl.named_parameters()}
    checks = diagnostics.report(
        tmp_path / "page.html",
        world.mtl,
        world.features(),
        world.y,
        test=(world.features(), world.y),
        record=tmp_path / "record.jsonl",
        reference=inference.Laplace(),
        draws=400,
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[n], v) for n, v in world.mtl.named_parameters())
    images = pictures(tmp_path / "page.html")
    assert len(images) == 9
    assert all(image.startswith(b"\x89PNG") for image in images)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for heading in ("Posteriors", "Gradients", "Aggregation", "Features", "Predictions"):
        assert f">{heading}</h2>" in text
    assert not re.search(r'(src|href)="(http|//)', text)  # self-contained
    found = by_key(checks)
    assert found.keys() >= {"khat", "z_score", "moments", "diagonal", "first_order", "pit", "ece"}
    assert not found["live_units"]
    rows = re.findall(r"<tr><td class=.(ok|alarm).>|<tr><td>look", text)
    assert len(rows) == len(checks)
    meant = {check.key for check in checks if check.alarm}
    for check in checks:  # what an alarm means is said of alarms alone
        assert (check.threshold.meaning.split("'")[0] in text) == (check.key in meant)
    assert ("to worry" in text[: text.index("<nav>")]) == bool(meant)
    links = re.findall(r'href="#([^"]+)"', text[text.index("<nav>") : text.index("</nav>")])
    assert links == re.findall(r'<h2 id="([^"]+)"', text)
    exact = next(check for check in checks if check.key == "khat" and "level" in check.where)
    assert exact.value == -math.inf
    assert {check.where for check in checks if check.key == "condition"} == {
        "flag",
        "kind",
        "level: task 0",
    }
    conflict = next(check for check in checks if check.key == "conflict")
    assert len(set(conflict.where.split(", "))) == 2


@pytest.mark.usefixtures("undrawn")
def test_dead_units_head_the_page(tmp_path: Path) -> None:
    world = World(kill_units=True).train()
    checks = diagnostics.report(
        tmp_path / "p.html", world.mtl, world.features(), world.y, draws=200
    )
    assert by_key(checks)["live_units"]
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    top = text[: text.index("<h2")]
    assert "checks alarm" in top
    assert "dead ReLU units" in top
    assert "which flatters" in text


@pytest.mark.usefixtures("undrawn")
def test_missing_labels_and_samples(tmp_path: Path) -> None:
    world = World()
    world.mtl = ba.BayesAgg(
        {
            "level": heads.Gaussian(8, tasks=2, missing="nan"),
            "flag": heads.Bernoulli(8),
            "wide": heads.Gaussian(8),
        },
        inference={
            "level": inference.Conjugate(),
            "flag": inference.NUTS(20, warmup=10, chains=2),
            "wide": inference.IntegratedNoise(),
        },
    )
    level = world.y["level"]
    world.y = {"level": level.clone(), "flag": world.y["flag"], "wide": level[:, :1]}
    world.y["level"][::3, 0] = torch.nan
    world.mtl.backward(world.features(), world.y)
    world.mtl.update_prior()
    checks = diagnostics.report(
        tmp_path / "p.html", world.mtl, world.features(), world.y, draws=200
    )
    assert {check.where.split(":")[0] for check in checks if check.key == "rhat"} == {"flag"}
    assert not [check for check in checks if check.key == "khat" and "wide" in check.where]
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "samples have no density" in text
    assert "wide: no densities that the likelihood goes with" in text


@pytest.mark.usefixtures("undrawn")
def test_labels_of_a_pyro_model_are_judged(tmp_path: Path) -> None:
    def model(features: torch.Tensor, targets: torch.Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        with pyro.plate("examples", len(features)):
            pyro.sample("y", dist.Bernoulli(logits=features @ w), obs=targets)

    world = World()
    world.mtl = ba.BayesAgg({"flag": heads.FromPyro(model, 8, target_kind="binary")})
    world.y = {"flag": world.y["flag"]}
    world.train()
    checks = diagnostics.report(
        tmp_path / "p.html", world.mtl, world.features(), world.y, draws=200
    )
    assert {"ece", "epistemic"} <= by_key(checks).keys()


@pytest.mark.usefixtures("undrawn")
def test_errors_of_what_has_no_mean_are_left_out(tmp_path: Path) -> None:
    world = World()
    world.mtl = ba.BayesAgg({"level": heads.StudentT(8, tasks=2, df=[1.0, 4.0])})
    world.y = {"level": world.y["level"]}
    world.train()
    checks = diagnostics.report(
        tmp_path / "p.html", world.mtl, world.features(), world.y, draws=200
    )
    (check,) = (check for check in checks if check.key == "epistemic")
    assert "80 predictions" in check.where


def test_errors_leave_no_page(tmp_path: Path) -> None:
    world = World()
    with pytest.raises(StateError, match="no prior yet"):
        diagnostics.report(tmp_path / "p.html", world.mtl, world.features(), world.y)
    world.train(1)
    del world.y["kind"]
    with pytest.raises(SettingError, match=r"targets of heads \['kind'\] are missing"):
        diagnostics.report(tmp_path / "p.html", world.mtl, world.features(), world.y)
    assert not (tmp_path / "p.html").exists()


def test_every_theme_of_a_record_is_drawn(tmp_path: Path) -> None:
    world = World()
    recorder = diagnostics.Recorder(world.mtl, tmp_path / "record.jsonl", every=1)
    world.train(3)
    rows = diagnostics.read(recorder.path)
    for theme in ("training", "features", "gradients", "aggregation"):
        path = tmp_path / f"{theme}.{'pdf' if theme == 'training' else 'png'}"
        figure = diagnostics.plot_record(rows, theme, path=path)  # type: ignore[arg-type]
        assert path.stat().st_size > 5000
        titled: list[Any] = [axes for axes in figure.axes if axes.get_title(loc="left")]
        assert titled
        assert all(axes.lines for axes in titled)
    with pytest.raises(SettingError, match="theme must be one of"):
        diagnostics.plot_record(rows, "colour")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="no columns about aggregation"):
        diagnostics.plot_record(rows[:1], "aggregation")


@pytest.mark.usefixtures("undrawn")
def test_predictions_are_judged_as_they_were_calibrated(tmp_path: Path) -> None:
    world = World().train(4)
    given = tmp_path / "p.html", world.mtl, world.features(), world.y
    before = by_key(diagnostics.report(*given, draws=100))
    world.mtl.calibrate([(world.features(), world.y)])
    after = by_key(diagnostics.report(*given, draws=100))
    assert before["ece"]
    assert not after["ece"]


def test_names_with_a_dollar_and_plain_numbers_on_axes(tmp_path: Path) -> None:
    figure = diagnostics.plot_record(
        [
            {"step": step, "bayesian": True, "loss/$a$": 10.0**step, "head_norm/b": 1 + 0.01 * step}
            for step in range(4)
        ],
        "training",
        path=tmp_path / "p.png",
    )
    for axes in figure.axes[:2]:
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels
        assert all(float(label) > 0 for label in labels)


def test_the_spread_of_predictions_is_in_units_of_the_noise_that_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `uncertainty` has it, up to the error of its 64 draws."""
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    y = x[:, :1] + 0.05 * torch.randn(400, 1)
    mtl = ba.BayesAgg({"y": heads.Gaussian(3)})
    mtl.collect(x, {"y": y})
    mtl.update_prior()
    head, posterior = mtl.heads["y"], mtl.posteriors()["y"]
    drawn: list[Any] = []
    monkeypatch.setattr(
        predicted, "plot_predictions", lambda *kinds: drawn.append(kinds[2]) or "figure"
    )
    predicted.predictions_section(
        {"y": head},
        {"y": posterior},
        x,
        {"y": head.parse_targets(y, 400)},
        on_training=False,
        generator=torch.Generator().manual_seed(0),
    )
    expected = predictive.uncertainty(head, posterior, x).epistemic.sqrt()
    assert drawn[0]["y"].deviation.mean() == pytest.approx(float(expected.mean()), rel=0.2)


class Steep(heads.Gaussian):
    """Loss in units that are a thousandth of the usual ones."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 1000 * super().loss(outputs, targets)


@pytest.mark.usefixtures("undrawn")
def test_gradients_are_those_of_a_step_also_of_losses_of_ones_own(tmp_path: Path) -> None:
    """By default a step divides such a loss by its size, so that its units do not matter."""
    found = []
    for kind in (heads.Gaussian, Steep):
        world = World()
        world.mtl = ba.BayesAgg({"a": heads.Gaussian(8, noise_scale=0.3), "b": kind(8)})
        world.y = {"a": world.y["level"][:, :1], "b": world.y["level"][:, 1:]}
        world.train()
        checks = diagnostics.report(
            tmp_path / "p.html", world.mtl, world.features(), world.y, draws=200
        )
        found.append({c.key: c.value for c in checks if c.key in ("effective_tasks", "share")})
    assert found[0] == pytest.approx(found[1], rel=0.01)
