"""The benchmark of costs: cases are picked by name, and what is promised stands beside them."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from bayesagg_pyro import gradients, heads, inference, priors
from benchmarks import cases, costs
from benchmarks.head_stage import floor
from benchmarks.published import published_binary_step, published_softmax_step


def test_names_are_unique_and_limits_are_of_something() -> None:
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    promised = [limit for case in cases.CASES for limit in dataclasses.astuple(case.limits)]
    assert sum(limit is not None for limit in promised) >= 9


def test_cases_are_picked_by_parts_of_their_names() -> None:
    assert [c.name for c in cases.selected(["10 cl", "R, 20 × b"])] == [
        "CIFAR, 20 × binary",
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
    page = tmp_path / "costs.md"
    written = ["--out", str(tmp_path / "costs.json"), "--page", str(page)]
    costs.main(["--rounds", "2", "--limits", *written])
    result = json.loads((tmp_path / "costs.json").read_text())
    assert [row["case"] for row in result["rows"]] == [small.name, rows.name]
    printed = capsys.readouterr().out
    assert printed.count(f"| {small.name} |") == 2  # time and memory
    assert "| 10 classes | time over LS | 4 |" in printed
    assert printed.strip() in page.read_text()
    assert f"--page {page} --rounds 2 --limits" in page.read_text()
    pixels, classes = result["rows"]
    assert pixels["over_ls"].keys() == {"default", "all"}
    assert classes["over_ls"].keys() == {"default", "all", "published"}
    costs.main(["--rounds", "2", "--limits", "--resume", *written])
    assert json.loads((tmp_path / "costs.json").read_text()) == result
    for row in result["rows"]:
        assert min(*row["seconds"].values(), *row["peak_bytes"].values()) > 0


@pytest.mark.parametrize("softmax", [False, True])
def test_the_published_step_is_a_newton_step_and_its_draws(softmax: bool) -> None:
    """Beside the library's own mean and Monte Carlo, from the same weights."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=rng)
    y = torch.randint(0, 3 if softmax else 2, (40, 1), generator=rng)
    torch.manual_seed(1)
    step = (published_softmax_step if softmax else published_binary_step)(x, y, samples=100_000)
    step()
    weight = step.args[0].double()  # type: ignore[attr-defined]
    head = heads.Categorical(3, 3, bias=True) if softmax else heads.Bernoulli(3, bias=True)
    with torch.no_grad():
        head.weight.copy_(weight.reshape(head.weight.shape))
    head.double()
    parsed = head.parse_targets(y if softmax else y.float(), 40)
    prior = priors.isotropic(head, 0.01)
    posterior = inference.TaylorGGN().infer(head, x.double(), parsed, prior)
    exact = gradients.MonteCarlo(100_000, generator=rng).estimate(
        head, posterior, x.double(), parsed
    )
    torch.testing.assert_close(x.grad * 40, exact.mean[0].float(), atol=0.01, rtol=0.02)


def test_a_floor_adds_up_and_grows_with_each_size() -> None:
    small = floor(16, 2, 8)
    assert small["sum"] == pytest.approx(sum(small.values()) / 2)
    assert all(floor(32, 20, 64)[part] > small[part] > 0 for part in ("functions", "tensors"))


def test_growth_is_the_slope_between_sizes() -> None:
    rows = [{"case": f"{n} binary", "seconds": {"all": 0.01 * n**1.5}} for n in (4, 9, 100, 1000)]
    assert costs._exponent(rows, "binary") == pytest.approx(1.5)
    assert costs._exponent(rows[:2], "binary") is None
    assert math.isfinite(costs._exponent(rows[:3], "binary") or math.nan)
