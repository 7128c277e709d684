"""The figures: what they are computed from, and that all of them are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.report.collect import setups
from experiments.report.figures import calibration, draw, trust
from experiments.report.illustration import problem
from tests.report.records import record

DIGITS = {"number": 0.2, "odd": 97.0, "loop": 96.0, "digit": 95.0}


def figures(ece: float, brier: float) -> dict[str, float]:
    return {"ECE digit": ece, "Brier digit": brier, "NLL digit": 0.1}


def test_the_illustrated_step_serves_both_tasks() -> None:
    """Each task gains where it is certain; the plain average gains less on both."""
    given = problem()
    means = [-grad.mean[0, 0].numpy() for grad in given.grads]
    deviations = [grad.variance[0, 0].sqrt().numpy() for grad in given.grads]
    precision = [1 / deviation**2 for deviation in deviations]
    expected = sum(p * m for p, m in zip(precision, means, strict=True)) / sum(precision)
    np.testing.assert_allclose(given.update, expected, rtol=1e-6)
    np.testing.assert_allclose(given.average, sum(means) / 2, rtol=1e-6)

    def misfit(step: np.ndarray) -> list[float]:
        return [
            float((((step - m) / s) ** 2).sum())
            for m, s in zip(means, deviations, strict=True)
        ]  # fmt: skip

    assert sum(misfit(given.update)) < sum(misfit(given.average))


@pytest.mark.usefixtures("undrawn")
def test_calibration_names_ours_and_the_best_of_the_others(tmp_path: Path) -> None:
    found = [
        record("ls", 0, DIGITS, benchmark="digits", figures=figures(0.01, 0.2)),
        record("uw", 0, DIGITS, benchmark="digits", figures=figures(0.02, 0.3)),
        record("rlw", 0, DIGITS, benchmark="digits", figures=figures(0.06, 0.4)),
        record("bayesagg", 0, DIGITS, benchmark="digits", figures=figures(0.09, 0.5)),
    ]
    (setup,) = setups(found)
    ((task, points),) = trust(setup).items()
    assert points["LS"] == {"ours": False, "ECE": (0.01, None), "Brier": (0.2, None)}
    (axes,) = calibration({"task": task, "points": points}).axes
    assert {text.get_text() for text in axes.texts} == {"LS", "BayesAgg"}
    assert len(axes.containers) == 4
    drawn = draw(found, tmp_path)
    assert [path.stem for path in drawn] == [
        "update_directions",
        "flow",
        "calibration_digits_digit",
    ]
    assert all(path.with_suffix(".pdf").exists() for path in drawn)


def test_one_method_is_no_comparison() -> None:
    (setup,) = setups([record("ls", 0, DIGITS, benchmark="digits", figures=figures(0.1, 0.2))])
    assert trust(setup) == {}
    assert pytest.approx(setup.groups["ls"].score) == 100.0
