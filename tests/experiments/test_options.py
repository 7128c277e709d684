"""The option surface: one spelling everywhere, generated, quick, shown to the letter."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from experiments import registry
from experiments.cli import app
from experiments.comparisons import COMPARISONS
from experiments.methods import BayesAggOptions
from experiments.settings import Settings
from experiments.training import RESULTS
from experiments.training.results import contents
from tests.experiments.toy import Toy

ROOT = Path(__file__).resolve().parents[2]
TOY = "tests.experiments.toy:Toy"
COMMANDS = [
    *([name] for name in registry.names()),
    *([kind, name] for kind in ("run", "sweep") for name in registry.names()),
    *(["compare", name] for name in COMPARISONS),
    *(["report"], ["figures"], ["study"], ["demo"], ["doctor"], ["predictions"], ["render"]),
]
#: One of those that share their options.
SHOWN = [
    *(words for words in COMMANDS if len(words) == 1),
    *(["run", "digits"], ["sweep", "digits"], ["compare", "demo"]),
]


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "400", "TERM": "dumb"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@functools.cache
def command(*words: str) -> Any:
    """The command that these words lead to; made once."""
    if not words:
        return typer.main.get_command(app)
    return command(*words[:-1]).get_command(None, words[-1])


def options(words: list[str]) -> Iterator[tuple[str, Any]]:
    for item in command(*words).params:
        for flag in item.opts:
            if flag.startswith("--"):
                yield flag, item


def test_help_needs_no_torch() -> None:
    """So that it is there in a fraction of a second."""
    code = f"""
import sys
import typer
from typer.testing import CliRunner
from experiments.cli import app
for words in {[[], ["run"], ["compare"], *SHOWN[-3:]]!r}:
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, words
top = typer.main.get_command(app)
for words in {COMMANDS!r}:
    found = top
    for word in words:
        found = found.get_command(None, word)
    assert found.params, words
heavy = {{"torch", "pyro", "matplotlib", "numpy", "pandas"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_nothing_of_the_help_is_eaten(words: list[str]) -> None:
    """Brackets are no markup."""
    shown = re.sub(r"[\s│]+", " ", run(*words, "--help"))
    texts = [item.help.replace("\\[", "[") for _, item in options(words) if item.help]
    texts += [item.metavar for _, item in options(words) if getattr(item, "metavar", None)]
    assert texts
    for text in texts:
        assert re.sub(r"\s+", " ", text).strip() in shown


def test_an_option_has_one_spelling_and_one_meaning_in_every_command() -> None:
    """Its meaning is its name, and the part of the help that it is in; short helps have none."""
    meanings: dict[str, set[tuple[str, str | None]]] = {}
    for words in COMMANDS:
        for flag, item in options(words):
            panel = getattr(item, "rich_help_panel", None)
            meanings.setdefault(flag, set()).add((item.name, panel))
    several = {flag for flag, found in meanings.items() if len(found) > 1}
    # Where to write, where data lie, what decides what is random, images, and tracebacks.
    assert several == {"--out", "--data", "--seeds", "--height", "--image-width", "--debug"}
    for flag in several:
        names, panels = zip(*meanings[flag], strict=True)
        assert len(set(names)) == 1
        assert len({*panels} - {None}) == 1
    assert all(len(item.opts) == 1 for words in COMMANDS for _, item in options(words))
    spellings: dict[str, set[tuple[str, ...]]] = {}
    for words in COMMANDS:
        for _, item in options(words):
            spellings.setdefault(item.name, set()).add((*item.opts, *item.secondary_opts))
    assert {name for name, found in spellings.items() if len(found) > 1} == set()


def test_every_field_is_an_option() -> None:
    named = {item.name for _, item in options(["run", "qm9"])}
    for kind in (registry.find("qm9"), Settings, BayesAggOptions):
        assert {field.name for field in fields(kind)} - {"seed"} <= named
    for benchmark in ("utkface", "chestxray14", "cifar-mtl"):
        assert {"--size", "--width"} <= {flag for flag, _ in options([benchmark])}
    shown = re.sub(r"[\s│]+", " ", run("digits", "--help"))
    assert "[default: (128)]" in shown  # the benchmark's own batch size
    toy = re.sub(r"[\s│]+", " ", run(TOY, "--help"))
    assert "[default: (32)]" in toy  # though not written as a class variable


def test_a_list_of_values_is_a_sweep(tmp_path: Path) -> None:
    words = ["--power", "0.3", "0.5", "--seeds", "0", "1", "--set", "width=8", "--set", "width=16"]
    text = run("run", "digits", "--method", "ls", "bayesagg", *words, "--plan", "--no-estimate",
               "--out", str(tmp_path / "x"))  # fmt: skip
    assert "12 runs" in text  # LS has no power
    assert re.search(r"width\W+power\W+seeds", text)
    assert "given twice: leave one out, or give python -m experiments run digits" in run(
        "digits", "--set", "width=8", "--set", "width=16", code=2
    )
    assert "method = 'all' names several" in run("digits", "--method", "all", code=2)


def test_a_sweep_takes_the_papers_values_for_what_is_not_given(tmp_path: Path) -> None:
    plan = ["--plan", "--no-estimate", "--out", str(tmp_path)]
    assert "6 runs" in run("sweep", "cifar-mtl", *plan)
    assert "9 runs" in run("sweep", "cifar-mtl", "--pretrain", "1", "2", "5", *plan)
    assert "3 runs" in run("sweep", "cifar-mtl", "--pretrain", "2", *plan)


@pytest.mark.usefixtures("undrawn")
def test_a_benchmark_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its class, or by an entry point's name, and with its own fields as options."""
    size, own = ["--rows", "60", "--epochs", "2"], "tests.experiments.toy:Squares"
    run("run", TOY, "--method", own, *size, "--no-estimate", "--out", str(tmp_path / "one"))
    (saved,) = (tmp_path / "one").rglob(RESULTS)
    options = json.loads(saved.read_text())["benchmark"]["options"]
    assert options == {"rows": 60, "dropout": 0.1, "blow_up": False}
    assert "Squares" in run("report", str(tmp_path / "one"))
    text = run("run", TOY, "--method", "ls", *size, "--dropout", "0", "0.5", "--plan",
               "--no-estimate", "--out", str(tmp_path))  # fmt: skip
    assert "2 runs" in text
    point = importlib.metadata.EntryPoint("mine", TOY, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    registry._installed.cache_clear()
    try:
        assert "mine" in run("run", "--help")
        assert "--blow-up" in run("mine", "--help")
    finally:
        registry._installed.cache_clear()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at.all:Mine", "there is no such module"),
        ("tests.experiments.toy:Nothing", "defines no class 'Nothing'"),
        ("experiments.rows:Rows", "is no subclass of"),
        ("mnist", "is unknown: give one of digits"),
    ],
)
def test_no_benchmark(name: str, message: str, tmp_path: Path) -> None:
    text = run("run", name, "--plan", "--out", str(tmp_path), code=2)
    assert message in text
    assert "Traceback" not in text


def test_a_shell_can_complete_it() -> None:
    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "experiments"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "BAYESAGG_PROGRAM": "experiments",
                "_EXPERIMENTS_COMPLETE": "complete_bash",
                "COMP_WORDS": " ".join(("experiments", *words)),
                "COMP_CWORD": str(len(words)),
            },
        )
        return done.stdout.split()

    assert completed("run", "dig") == ["digits"]
    assert completed("qm9", "--mol") == ["--molecules"]


def test_what_data_there_are_is_told(tmp_path: Path) -> None:
    """Sizes, missing labels: where a run begins, below its table, and in the report."""
    name, place = "experiments.studies.digits:ThreeTasks", tmp_path / "store"
    settings = ("--missing", "0.5", "--method", "ls", "--epochs", "1", "--no-figures")
    text = run(name, *settings, "--out", str(place / "one"))
    told = r"1,079/359/359 train/validation/test; training labels missing: number (\d+\.\d) %, odd "
    first, second = re.findall(told, text)
    assert first == second
    assert 45 < float(first) < 55
    assert re.findall(told, run("report", str(place))) == [first]
    shown = run("run", name, *settings[:-1], "--plan", "--out", str(tmp_path / "none"))
    assert "train/validation/test" not in shown


def test_what_is_left_out_is_told() -> None:
    data = Toy().load(torch.device("cpu"))
    assert contents(data.contents(Toy().losses)) == "96/32/32 train/validation/test"
    changed = replace(
        data, left_out={"damaged rows": 1200, "empty ones": 0}, missing={"sine": 0.25}
    )
    assert contents(changed.contents(Toy().losses)) == (
        "96/32/32 train/validation/test; training labels missing: sine 25.0 %; "
        "left out: 1,200 damaged rows"
    )
