"""A sweep whose values Optuna chooses: what it asks for, and that it goes on where it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app, many
from experiments.runner import Ending, Job, JobOutcome, Place, State, work
from experiments.runner.search import STUDIES

pytest.importorskip("optuna")

TOY = "tests.experiments.toy:Toy"
ASKED = ("--epochs", "1", "--lr", "1e-4..1e-1", "--dropout", "0", "0.2", "--batch-size", "20..32")


def sweep(out: Path, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(
        app, ["sweep", TOY, "--out", str(out), *words], env={"COLUMNS": "400", "TERM": "dumb"}
    )
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def here(todo: Sequence[Job], *_: object) -> Mapping[Job, JobOutcome]:
    """In this process: what is tested is not the engine."""
    return {job: work(job) for job in todo}


def trials(text: str) -> list[str]:
    return re.findall(r"trial \d+ of .*", text)


def test_a_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "conduct", here)
    whole = sweep(tmp_path / "whole", "--method", "ls", *ASKED, "--search", "4")
    tried = trials(whole)
    assert len(tried) == 4
    for text in tried:
        point = dict(pair.split() for pair in text.partition(": ")[2].split(", "))
        assert 1e-4 <= float(point["learning_rate"]) <= 1e-1
        assert point["dropout"] in ("0", "0.2")
        assert 20 <= int(point["batch_size"]) <= 32
    folders = [*(tmp_path / "whole" / "toy").glob("*/seed0")]
    assert {Place(folder).state() for folder in folders} == {State.DONE}
    scores = {Place(one).load()["best"]["validation_score"] for one in folders}
    (best,) = [line for line in whole.splitlines() if "best of 4 trials" in line]
    assert f"({min(scores):g})" in best

    began: list[Job] = []

    def stopped(todo: Sequence[Job], *more: object) -> Mapping[Job, JobOutcome]:
        began.extend(todo)
        if len(began) == 2:
            return {job: JobOutcome(Ending.STOPPED) for job in todo}
        return here(todo)

    asked = ("--method", "ls", *ASKED, "--search", "4")
    monkeypatch.setattr(many, "conduct", stopped)
    first = sweep(tmp_path / "parts", *asked, code=3)
    monkeypatch.setattr(many, "conduct", here)
    second = sweep(tmp_path / "parts", *asked)
    assert trials(first) == tried[:2]
    assert trials(second) == tried[1:]
    assert not trials(sweep(tmp_path / "parts", *asked))
    longer = sweep(tmp_path / "parts", "--method", "ls", *ASKED, "--search", "5")
    assert len(trials(longer)) == 1
    log = tmp_path / "parts" / STUDIES
    for damaged in (b"no log\n" + log.read_bytes(), b"{}\n", b"\xff\n", b"[1]\n"):
        log.write_bytes(damaged)
        assert f"{STUDIES} is damaged" in sweep(tmp_path / "parts", *asked, code=2)
        assert log.read_bytes() == damaged


def test_a_trial_that_fails_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(todo: Sequence[Job], *_: object) -> Mapping[Job, JobOutcome]:
        return {job: JobOutcome(Ending.FAILED, "diverged") for job in todo}

    monkeypatch.setattr(many, "conduct", fails)
    asked = ("--method", "ls", *ASKED, "--search", "2")
    assert "no trial has ended well" in sweep(tmp_path, *asked, code=1)
    assert not trials(sweep(tmp_path, *asked))


def test_each_method_is_searched_among_its_own(tmp_path: Path) -> None:
    text = sweep(
        tmp_path / "none",
        *("--method", "ls", "bayesagg", "--lr", "1e-4..1e-1", "--power", "0.1..1"),
        *("--pretrain", "1", "--search", "3", "--plan"),
    )
    decays = "ls.weight_decay 0 0.0001 0.0005 0.001"  # of the paper's search
    assert f"ls: 3 trials, learning_rate 1e-4..1e-1; {decays}\n" in text
    assert "bayesagg: 3 trials, learning_rate 1e-4..1e-1; power 0.1..1\n" in text
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--method", "uw", "--search", "3"), "nothing to choose among for method uw"),
        (("--search", "0", "--lr", "1e-4..1e-1"), "search = 0 cannot work: give at least 1 trial"),
        (("--search", "3", "--lr", "1e-1..1e-4"), "learning_rate = '1e-1..1e-4' cannot work"),
        (("--search", "3", "--batch-size", "1.5..4"), "batch_size = '1.5..4' .* whole numbers"),
        (("--search", "3", "--schedule", "1..2"), "schedule is no number"),
        (
            ("--method", "ls", "--search", "3", "--lr", "-1.0..1"),
            r"learning_rate = -1.0 cannot work",
        ),
        (
            ("--method", "ls", "--search", "3", "--lr", "0.1", "fast"),
            "learning_rate = 'fast' cannot be read",
        ),
        (("--lr", "1e-4..1e-1"), "or search the range with sweep --search"),
    ],
)
def test_refused(words: Sequence[str], told: str, tmp_path: Path) -> None:
    text = sweep(tmp_path / "none", *words, "--epochs", "1", code=2)
    assert re.search(told, text), text
    assert not (tmp_path / "none").exists()


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    text = sweep(tmp_path / "none", "--lr", "1e-4..1e-1", "--search", "3", code=2)
    assert "pip install optuna" in text
