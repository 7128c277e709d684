"""The benchmark of a card, all but the card: modes, what is left out, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, step
from experiments.training.graphs import TwinBackend


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense benchmark alone, of a few pixels."""
    cases = {"dense": lambda: step._dense(8, 12, levels=1)}
    monkeypatch.setattr(step, "CASES", cases)


@pytest.mark.usefixtures("small")
def test_a_cpu_runs_eager_steps_and_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--cases", "dense", "--rounds", "2", "--out", str(out)])
    result = json.loads(out.read_text())
    ((ratio, low, high),) = (row["bayesagg_over_ls"] for row in result["rows"])
    assert 0 < low <= ratio <= high
    assert [one["mode"] for one in result["left_out"]] == ["captured", "compiled"]
    page = out.with_suffix(".md").read_text()
    assert page.startswith("# Steps on CPU")
    assert "- dense, captured: needs a CUDA device" in page
    assert "| dense | eager |" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path / "gpu.json")])
    assert "finds no CUDA device here; --device cpu" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small")
def test_time_that_is_up_and_steps_that_fail_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    late = gpu.run("cpu", ("dense",), minutes=-1.0)
    assert late["left_out"][0]["why"] == "-1 minutes were over"

    def fails(*_: object) -> None:
        raise RuntimeError("no memory\nfor that")

    monkeypatch.setattr(gpu, "_measure", fails)
    assert gpu.run("cpu", ("dense",))["left_out"][0]["why"] == "no memory"


@pytest.mark.usefixtures("small")
def test_a_captured_step_is_a_step() -> None:
    """By the backend that captures nothing: warm-up, capture and replays in their order."""
    pairs = [step.steps(step.problem("dense"))["bayesagg"] for _ in range(2)]
    torch.manual_seed(1)
    for _ in range(2 + 2):
        pairs[0][1]()
    torch.manual_seed(1)
    replay = gpu._captured(TwinBackend(), pairs[1][1])
    for _ in range(2):
        replay()
    for a, b in zip(pairs[0][0].parameters(), pairs[1][0].parameters(), strict=True):
        assert torch.equal(a, b)
