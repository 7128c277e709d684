"""What somebody reads who follows one step through the library stays little."""

from __future__ import annotations

from benchmarks.trace import calls_of_a_step


def test_a_step_of_one_head_passes_through_few_functions_and_files() -> None:
    calls = calls_of_a_step()
    assert (calls[0].name.rpartition(".")[2], calls[0].depth) == ("backward", 0)
    assert any(call.name.endswith("bayesian_step") for call in calls)
    # Look at `python -m benchmarks.trace` before raising these: what does a reader need it for?
    assert len(calls) <= 123
    assert len({call.file for call in calls}) <= 20
