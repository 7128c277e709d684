"""What is written, and how."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from experiments import files
from experiments.errors import DataError, OutputError
from experiments.files import (
    cache,
    prepare_folder,
    strict,
    unfinished,
    write_atomically,
    write_json,
)
from experiments.randomness import seed_of
from experiments.training import checkpoints, results


def test_json_is_strict(tmp_path: Path) -> None:
    value = {"a": float("nan"), "b": [float("inf"), 1.5, True, None], "c": (Path("x"), "ü")}
    write_json(tmp_path / "r.json", value)
    text = (tmp_path / "r.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {"a": None, "b": [None, 1.5, True, None], "c": ["x", "ü"]}
    with pytest.raises(TypeError, match="set has no place in a results file"):
        strict({"a": {1, 2}})


def test_names_that_are_no_text_cost_no_results(tmp_path: Path) -> None:
    """A folder from a disk of another encoding; a command names it, and so do skipped images."""
    name = os.fsdecode(b"st\xf6re")
    write_json(tmp_path / "r.json", {"command": ["digits", name], name: Path(name)})
    found = results.read(tmp_path / "r.json")
    assert found == {"command": ["digits", "st?re"], "st?re": "st?re"}


def test_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def stop(file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, stop)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its name before the call ends."""
    seen = []

    def sync(descriptor: int) -> None:
        opened = os.fstat(descriptor)
        name = "folder" if os.path.samestat(opened, tmp_path.stat()) else opened.st_size
        seen.append((name, (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert seen == [(3, False), ("folder", True)]


def test_ctrl_c_while_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer calls back from C++ and ends with an error of its own."""
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"old")
    write = files._Target.write

    def pressed(target: files._Target, data: object) -> int:
        write(target, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(files._Target, "write", pressed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(path, {"tensors": [torch.ones(10_000) for _ in range(9)]})
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_what_killed_builders_left_goes_after_a_day(tmp_path: Path) -> None:
    old, young = (unfinished(tmp_path / "set.npz") for _ in range(2))
    assert old != young
    mine = tmp_path / ".mine.tmp"
    for file in (old, young, mine):
        file.write_bytes(b"half")
    for file in (old, mine):
        os.utime(file, (0, 0))
    cache.require_writable(tmp_path)
    assert {*tmp_path.iterdir()} == {young, mine}


def test_prepare_folder(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    for taken in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot write into the output folder"):
            prepare_folder(taken)


@pytest.mark.parametrize(
    "content", [None, "", "[1]", '{"format": 99}', '{"format": 1', '{"format": 1}']
)
def test_unreadable_results(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"results\.json"):
        results.load(path)


def test_seeds_of_different_purposes_differ() -> None:
    seeds = [seed_of(s, *p) for s in range(20) for p in [("a",), ("b",), ("a", 1), ("a", 2)]]
    assert len(set(seeds)) == len(seeds)
    assert seed_of(3, "order", 5) == seed_of(3, "order", 5)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_device_is_no_file(tmp_path: Path) -> None:
    """As /dev/stdout, which root would replace by a file."""
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    with pytest.raises(OutputError, match="give the name of a file"):
        write_atomically(null, lambda file: file.write(b"text"))
    assert [*tmp_path.iterdir()] == [null]
    assert null.is_symlink()
