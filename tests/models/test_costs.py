"""The benchmark of costs: cases are picked by name, and what is promised stands beside them."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from benchmarks import cases, costs
from benchmarks.floor import floor


def test_names_are_unique_and_limits_are_of_something() -> None:
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    promised = [limit for case in cases.CASES for limit in dataclasses.astuple(case.limits)]
    assert sum(limit is not None for limit in promised) >= 9


def test_cases_are_picked_by_parts_of_their_names() -> None:
    assert [c.name for c in cases.selected(["10 cl", "(CIF"])] == [
        "20 binary (CIFAR)",
        "10 classes",
    ]
    assert not any(case.slow for case in cases.selected([]))
    assert any(case.slow for case in cases.selected([], slow=True))
    assert all(c.limits != cases.Limits() for c in cases.selected([], limits=True))
    with pytest.raises(ValueError, match="no case is called like"):
        cases.selected(["nothing"])


def test_pixels_and_rows_are_measured_and_written(tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    small = dataclasses.replace(
        next(case for case in cases.CASES if "two conv" in case.name), inputs=(1, 3, 4, 5)
    )
    rows = next(case for case in cases.CASES if case.name == "10 classes")
    monkeypatch.setattr(cases, "CASES", [small, rows])
    monkeypatch.setattr(costs, "CASES", [small, rows])
    costs.main(["--rounds", "2", "--limits", "--out", str(tmp_path / "costs.json")])
    result = json.loads((tmp_path / "costs.json").read_text())
    assert [row["case"] for row in result["rows"]] == [small.name, rows.name]
    printed = capsys.readouterr().out
    assert printed.count(f"| {small.name} |") == 2  # time and memory
    assert "| 10 classes | time over LS | 4 |" in printed
    for row in result["rows"]:
        assert min(*row["seconds"].values(), *row["peak_bytes"].values()) > 0


def test_a_floor_adds_up_and_grows_with_each_size() -> None:
    small = floor(16, 2, 8)
    assert small["sum"] == pytest.approx(sum(small.values()) / 2)
    assert all(floor(32, 20, 64)[part] > small[part] > 0 for part in ("functions", "tensors"))


def test_growth_is_the_slope_between_sizes() -> None:
    rows = [
        {"case": f"{n} binary", "schemes": "full", "seconds": {"bayesagg": 0.01 * n**1.5}}
        for n in (4, 9, 100, 1000)
    ]
    assert costs._exponent(rows, "binary") == pytest.approx(1.5)
    assert costs._exponent(rows[:2], "binary") is None
    assert math.isfinite(costs._exponent(rows[:3], "binary") or math.nan)
