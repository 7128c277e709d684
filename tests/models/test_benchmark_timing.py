"""The helpers behind every ratio, and the network's benchmark at a small size."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.timing import Timings, interleave, peak_memory


def test_ratio_is_the_median_over_rounds_with_an_interval_around_it() -> None:
    # A machine that slows down eightfold in the middle: the ratio within rounds stays near 3.
    slow = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 1.0]
    wobble = [3.0, 3.1, 2.9, 3.0, 3.2, 2.8, 3.0]
    timings = Timings({"a": [s * w for s, w in zip(slow, wobble, strict=True)], "b": slow})
    ratio = timings.ratio("a", "b")
    assert ratio.median == pytest.approx(3.0)
    assert 2.8 <= ratio.low <= 3.0 <= ratio.high <= 3.2
    assert ratio.low < ratio.high
    assert timings.ratio("a", "b") == ratio
    assert timings.median("b") == 4.0
    with pytest.raises(ValueError, match="nothing called 'c'"):
        timings.ratio("a", "c")


def test_calls_take_turns_in_an_order_that_changes() -> None:
    calls: list[str] = []
    names = "abcd"
    candidates = {name: lambda name=name: calls.append(name) for name in names}
    timings = interleave(candidates, rounds=12, warmup=1)
    assert "".join(calls[:4]) == names
    rounds = ["".join(calls[k : k + 4]) for k in range(4, len(calls), 4)]
    assert all(sorted(order) == list(names) for order in rounds)
    # Each comes after each other one at some time, so none always pays for the same one.
    pairs = {order[k : k + 2] for order in rounds for k in range(3)}
    assert len(pairs) == 12
    assert [len(v) for v in timings.seconds.values()] == [12] * 4


def test_times_are_those_of_the_calls() -> None:
    timings = interleave({"long": lambda: time.sleep(0.03), "short": lambda: None}, rounds=3)
    assert timings.median("long") >= 0.03
    assert timings.ratio("long", "short").low > 2
    asleep = interleave({"long": lambda: time.sleep(0.03)}, rounds=3, clock=time.process_time)
    assert asleep.median("long") < 0.02


@pytest.mark.parametrize("bad", [{"rounds": 1}, {"warmup": -1}, {"candidates": {}}])
def test_nothing_to_time(bad: dict[str, object]) -> None:
    arguments: dict[str, object] = {"candidates": {"a": lambda: None}, **bad}
    with pytest.raises(ValueError, match="interleave needs"):
        interleave(**arguments)  # type: ignore[arg-type]


def test_peak_memory_counts_what_is_alive_together() -> None:
    def call() -> None:
        for _ in range(3):
            a = torch.ones(1000, 250)
            b = torch.ones(1000, 500)
            del a, b

    assert peak_memory(call) == pytest.approx(3_000_000, rel=0.01)


def test_network_benchmark_reports_all_forms() -> None:
    pytest.importorskip("torch_geometric", exc_type=ImportError)
    from benchmarks.network import run

    result = run(batch=6, groups=2, rounds=2, warmup=0)
    for name in ("pyg", "bfloat16"):
        median, low, high = result[f"{name}_over_factorised"]
        assert 0 < low <= median <= high
    assert result["difference"] < 1e-5
    assert 1e-6 < result["rounding"] < 1e-2
    assert result["peak_bytes"]["pyg"] > 5 * result["peak_bytes"]["factorised"]
