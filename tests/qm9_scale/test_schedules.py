"""Learning rates: torch's plateau rule, a smoothed one, and a cosine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau

from experiments.errors import SettingsError
from experiments.settings import Settings
from experiments.training import optimizers

SCORES = st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=60)


@hypothesis_settings(max_examples=25, deadline=None)
@given(SCORES, st.integers(0, 6), st.sampled_from([1e-3, 1.2e-5, 3e-6]))
def test_plateau_is_torchs(scores: list[float], patience: int, first: float) -> None:
    """Also from a rate below the smallest that it falls to, at which it stays."""
    mine = optimizers.schedule_of(Settings(learning_rate=first, plateau_patience=patience))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=first)
    theirs = ReduceLROnPlateau(
        optimizer, mode="min", factor=0.7, patience=patience, min_lr=1e-5, eps=0.0
    )
    for score in scores:
        mine.step(score)
        theirs.step(score)
        assert mine.rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


def test_smoothing_by_hand() -> None:
    """Noise that never sets a new minimum stops an unsmoothed schedule, not a smoothed one."""
    scores = [100.0, 40.0] + [90 - 2 * k + 25 * (-1) ** k for k in range(12)]
    plain = optimizers.schedule_of(Settings(plateau_patience=2))
    smooth = optimizers.schedule_of(Settings(plateau_patience=2, score_smoothing=0.7))
    average = scores[0]
    for score in scores:
        plain.step(score)
        average = 0.7 * average + 0.3 * score
        smooth.step(score)
    assert smooth.state_dict()["smoothed"] == pytest.approx(average)
    assert plain.rate < smooth.rate


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_cosine(epochs: int) -> None:
    schedule = optimizers.schedule_of(Settings(epochs=epochs, schedule="cosine"))
    rates = []
    for _ in range(epochs):
        rates.append(schedule.rate)
        schedule.step(1.0)
    assert rates[0] == pytest.approx(1e-3)
    if epochs > 1:
        assert rates[-1] == pytest.approx(1e-5)
        assert rates == sorted(rates, reverse=True)
        half = (epochs - 1) / 2
        if half.is_integer():
            assert rates[int(half)] == pytest.approx((1e-3 + 1e-5) / 2)


@pytest.mark.parametrize("kind", ["plateau", "steps", "cosine"])
def test_state_goes_on(kind: str) -> None:
    given = Settings(epochs=12, schedule=kind, plateau_patience=0, score_smoothing=0.5)  # type: ignore[arg-type]
    scores = [5.0, 4.0, 6.0, 7.0, 3.0, 8.0, 9.0, 1.0, 4.0, 4.0, 4.0, 4.0]
    whole, parts = optimizers.schedule_of(given), optimizers.schedule_of(given)
    for k, score in enumerate(scores):
        assert whole.rate == parts.rate
        whole.step(score)
        parts.step(score)
        state = parts.state_dict()
        parts = optimizers.schedule_of(given)
        parts.load_state_dict(state)
        assert 1e-5 <= parts.rate <= 1e-3, k


def test_rates_reach_the_optimiser_in_place() -> None:
    weight = torch.zeros(1, requires_grad=True)
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([weight], lr=rate, fused=True)
    optimizers.set_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    plain = torch.optim.SGD([weight], lr=1.0)
    optimizers.set_rate(plain, 0.5)
    assert plain.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("score_smoothing", 1.0), ("score_smoothing", -0.1), ("clip_norm", 0.0),
     ("clip_norm", math.inf), ("graph", "yes"), ("schedule", "linear")],
)  # fmt: skip
def test_bad_settings(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"{name} = .* cannot work"):
        Settings(**{name: value})  # type: ignore[arg-type]
