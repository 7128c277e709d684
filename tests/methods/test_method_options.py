"""Options of methods on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.errors import SettingsError
from experiments.runner.values import pairs

pytest.importorskip("torchjd")
QUICK = ["digits", "--epochs", "1", "--width", "4", "--device", "cpu", "--no-figures"]


@pytest.mark.parametrize("pair", ["c", "=3", " = 3"])
def test_pairs_need_a_name_and_a_value(pair: str) -> None:
    with pytest.raises(SettingsError, match="write it as NAME=VALUE"):
        pairs([pair])


def test_an_option_given_twice(tmp_path: Path) -> None:
    given = [*QUICK, "--power", "0.5", "--set", "power=1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "power is given twice: leave one out" in result.output


def test_options_reach_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = ["--method", "cagrad", "--level", "representation", "--set", "c=0.7"]
    result = CliRunner().invoke(app, [*QUICK, *given, "--out", str(out)])
    assert result.exit_code == 0, result.output
    method = json.loads((out / "results.json").read_text())["method"]
    assert method == {"name": "cagrad", "options": {"level": "representation", "c": 0.7}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--method", "ls", "--level", "parameters"], "it weighs losses"),
        (["--method", "bayesagg", "--level", "parameters"], "a Jacobian of the network"),
        (["--method", "cagrad", "--set", "c=-1"], "c = -1.0 cannot work"),
        (["--method", "cagrad", "--set", "cagrad.d=1"], "its options are level, c"),
        (["--method", "ls", "--set", "cagrad.c=1"], "cagrad is not run: leave c out"),
        (["--method", "cagrad", "--set", "d=1"], "d = '1' has no meaning for method cagrad"),
        (["--method", "bayesagg", "--level", "foo"], "method bayesagg has no levels"),
        (["--method", "torchjd:Constant", "--set", "weights=abc"], "weights = 'abc' cannot"),
        (["--method", "torchjd:CAGrad", "--set", "c=[1, 2]"], "c = [1, 2] cannot work"),
        (["--method", "torchjd:Nothing"], "is unknown to TorchJD"),
    ],
)
def test_refusals_are_one_line(given: list[str], message: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(app, [*QUICK, *given, "--out", str(out)])
    assert result.exit_code == 2
    assert message in result.output
    assert not out.exists()
