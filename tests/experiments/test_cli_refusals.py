"""Runs that cannot begin: one line with the remedy, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.runner.store import Place


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400", "TERM": "dumb"})
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_missing_data_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = refused("qm9", "--data", str(tmp_path / "nope.npz"), "--out", str(out))
    assert "there is no data file" in text
    assert "leave --data out" in text
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04 cut off"])
def test_a_damaged_data_file_is_not_to_be_deleted(tmp_path: Path, content: bytes) -> None:
    data, out = tmp_path / "mine.npz", tmp_path / "out"
    data.write_bytes(content)
    text = refused("qm9", "--data", str(data), "--out", str(out))
    assert "damaged" in text
    assert "leave --data out" in text
    assert "delete" not in text
    assert "pickle=" not in text
    assert not out.exists()


def test_resume_without_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "around" / "out"
    assert "checkpoint" in refused("qm9", "--resume", "--out", str(out))
    assert not out.parent.exists()


@pytest.mark.parametrize("words", [("--only", "nobody"), ("--minutes", "0"), ("--engine", "dusk")])
def test_a_comparison_leaves_no_folder_for_its_figure(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    places = ("--out", str(tmp_path / "out"), "--figure", str(tmp_path / "around" / "figure"))
    refused("compare", "digits", *words, *places)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words",
    [
        ("predictions", "absent", "--out", "new/around/figure"),
        ("figures", "absent", "--out", "new/around"),
        ("report", "absent", "--format", "md", "--out", "new/around/report.md"),
        ("run", "tox21", "--method", "ls", "--data", "absent.csv", "--out", "new/around"),
        ("sweep", "tox21", "--method", "ls", "--data", "absent.csv", "--out", "new/around"),
        ("compare", "league-tox21", "--data", "absent.csv", "--out", "new/around"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_refused_leaves_no_folder(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "absent" in refused(*words)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [("--minutes", "-5"), ("--jobs", "0"), ("--engine", "dusk")])
def test_a_search_that_cannot_run_begins_no_trial(words: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = ("--method", "ls", "--search", "2", "--lr", "1e-3..1e-2")
    assert words[1] in refused("sweep", "digits", *search, *words, "--out", str(tmp_path / "out"))
    assert not [*tmp_path.iterdir()]


DIGITS = ["digits", "--method", "ls", "--epochs", "1", "--device", "cpu", "--no-figures"]


def test_a_folder_where_another_process_is_at_work(tmp_path: Path) -> None:
    with Place(tmp_path / "out").locked() as mine:
        assert mine
        text = refused(*DIGITS, "--out", str(tmp_path / "out"))
    assert "another process is at work in" in text
    assert "choose another --out" in text
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["run.lock"]


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    text = refused(*DIGITS, "--out", str(tmp_path / ("x" * 300)))
    assert "cannot write into the output folder" in text
    assert "File name too long" in text


def test_resume_and_overwrite_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "give one of them" in refused(*DIGITS, "--resume", "--overwrite", "--out", str(out))
    assert not out.exists()


PRESSED_DURING_IMPORTS = """
import runpy, signal, sys, types

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore it


class Importing(types.ModuleType):
    def __getattr__(self, name):
        signal.raise_signal(signal.SIGINT)


sys.modules["experiments.cli"] = Importing("experiments.cli")
runpy.run_module("experiments", run_name="__main__")
"""


def test_ctrl_c_during_imports() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PRESSED_DURING_IMPORTS], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (130, "interrupted\n")


def test_output_that_cannot_show_every_letter() -> None:
    """As of a pipe under Windows; a table must not end in a traceback after hours of training."""
    found = subprocess.run(
        [sys.executable, "-m", "experiments", "compare", "qm9-small", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "Usage:" in found.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--partition", "gpu"), "partition = 'gpu' cannot work: give --engine slurm as well"),
        (("--engine", "dask", "--partition", "gpu"), "partition = 'gpu' cannot work: leave it out"),
        (("--engine", "slurm", "--queue", "high"), "--queue 'high' cannot be read"),
        (("--engine", "dusk"), "give local, slurm, submitit-local or dask"),
    ],
)
def test_what_an_engine_does_not_take(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert told in refused("run", "digits", "--method", "ls", *words, "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize("command", ["figures", "predictions"])
def test_a_store_is_no_run(command: str, tmp_path: Path) -> None:
    one = tmp_path / "toy" / "ls-12345678" / "seed0"
    one.mkdir(parents=True)
    (one / "results.json").write_text("{}", encoding="utf-8")
    text = refused(command, str(tmp_path))
    assert f"{tmp_path} is no run and holds several: give the folder of one, such as {one}" in text


def test_a_figure_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    text = refused("predictions", str(tmp_path), "--out", str(tmp_path / "file" / "figure"))
    assert "choose another with --out" in text
