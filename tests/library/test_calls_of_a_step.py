"""What somebody reads who follows one step through the library stays little."""

from __future__ import annotations

import pytest

from benchmarks.trace import calls_of_a_step


@pytest.mark.parametrize(("infers", "calls", "files"), [(False, 125, 20), (True, 234, 37)])
def test_a_step_of_one_head_passes_through_few_functions_and_files(infers, calls, files) -> None:
    found = calls_of_a_step(infers=infers)
    assert (found[0].name.rpartition(".")[2], found[0].depth) == ("backward", 0)
    assert any(call.name.endswith("bayesian_step") for call in found)
    assert any("posterior" in call.name for call in found) == infers
    # Look at `python -m benchmarks.trace` before raising these: what does a reader need it for?
    assert len(found) <= calls
    assert len({call.file for call in found}) <= files
