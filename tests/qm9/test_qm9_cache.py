"""The built file: intact or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import qm9
from experiments.errors import DataError, SettingsError
from experiments.files import cache
from experiments.qm9 import qm9pack_source
from tests.forked import FORKED


@pytest.fixture
def built(tables: Path, tmp_path: Path) -> Path:
    return qm9.load(path=tables, folder=tmp_path / "data").file


def forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(qm9pack_source, "build", build)


def test_second_load_reads_the_file(
    built: Path, tables: Path, sample: qm9.Molecules, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_building(monkeypatch)
    again = qm9.load(path=tables, folder=built.parent)
    assert again.file == built
    assert os.listdir(built.parent) == [built.name]
    assert again.sha256 == cache.checksum(sample.arrays())
    for name, array in again.molecules.arrays().items():
        assert array.dtype == getattr(sample, name).dtype
        assert np.array_equal(array, getattr(sample, name))
    assert again.about["molecules"] == 42
    assert json.loads(json.dumps(again.about))["sha256"] == again.sha256


def test_built_file_can_be_given(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_building(monkeypatch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    data = qm9.load(path=built)
    assert (len(data), data.source) == (42, "qm9pack")


def test_other_tables_get_another_file(built: Path, own_tables: Path) -> None:
    lines = (own_tables / "qm9_part1.csv").read_text().splitlines(keepends=True)
    (own_tables / "qm9_part1.csv").write_text("".join(lines[:-1]))
    other = qm9.load(path=own_tables, folder=built.parent)
    assert other.file != built
    assert len(other) == 41


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "here"))
    assert cache.default_folder() == tmp_path / "here"
    monkeypatch.delenv("BAYESAGG_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "bayesagg_pyro"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.default_folder() == Path.home() / ".cache" / "bayesagg_pyro"


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99, -1])
def test_truncated_file(built: Path, tables: Path, keep: float) -> None:
    content = built.read_bytes()
    size = int(keep * len(content)) if isinstance(keep, float) else keep
    built.write_bytes(content[:size])
    with pytest.raises(DataError, match=r"is damaged.*delete it") as caught:
        qm9.load(path=tables, folder=built.parent)
    assert str(built) in str(caught.value)
    assert len(built.read_bytes()) == len(content[:size])  # never repaired behind the user's back


def test_any_flipped_byte_is_noticed(built: Path, tables: Path) -> None:
    """Either the file is refused, or the byte was one that carries no content (archive headers)."""
    content = bytearray(built.read_bytes())
    intact = cache.read(built)[0]
    refused = 0
    for position in np.random.default_rng(0).integers(0, len(content), 60):
        content[position] ^= 0x10
        built.write_bytes(content)
        try:
            arrays, _ = cache.read(built)
        except DataError:
            refused += 1
        else:
            assert all(np.array_equal(arrays[name], intact[name]) for name in intact)
        content[position] ^= 0x10
    assert refused > 40


def test_changed_content_under_an_old_checksum(built: Path, tables: Path) -> None:
    arrays, about = cache.read(built)
    arrays["y"] = arrays["y"].copy()
    arrays["y"][3, 3] += 1
    with built.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
    with pytest.raises(DataError, match="checksum does not match"):
        qm9.load(path=tables, folder=built.parent)


def test_other_layout(built: Path, tables: Path) -> None:
    arrays, about = cache.read(built)
    with built.open("wb") as file:
        note = json.dumps({**about, "layout": cache.LAYOUT + 1})
        np.savez_compressed(file, about=np.array(note), **arrays)
    with pytest.raises(DataError, match=f"layout {cache.LAYOUT + 1}.*delete it"):
        qm9.load(path=tables, folder=built.parent)


@pytest.mark.parametrize("kind", ["text", "array", "archive", "pickle", "other arrays", "missing"])
def test_files_of_another_kind(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.npz"
    with path.open("wb") as file:
        if kind == "text":
            file.write(b"hello, world\n" * 40)
        elif kind == "array":
            np.save(file, np.zeros(3))
        elif kind == "archive":
            np.savez(file, a=np.zeros(3))
        elif kind == "pickle":
            np.savez(file, about=np.array([{}], dtype=object))
    if kind == "other arrays":
        cache.write(path, {"a": np.zeros(3)}, {})
    elif kind == "missing":
        path.unlink()
    with pytest.raises(DataError, match=r"other\.npz"):
        qm9.load(path=path)


def test_failed_write_leaves_the_old_file(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built.read_bytes()
    arrays, about = cache.read(built)

    def savez(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", savez)
    with pytest.raises(DataError, match=r"No space left.*BAYESAGG_DATA"):
        cache.write(built, arrays, about)
    assert built.read_bytes() == before
    assert os.listdir(built.parent) == [built.name]


def test_failed_build_leaves_nothing(own_tables: Path, tmp_path: Path) -> None:
    (own_tables / "qm9_part3.csv").write_text("nothing\n")
    with pytest.raises(DataError, match=r"qm9_part3\.csv"):
        qm9.load(path=own_tables, folder=tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []


def test_folder_that_cannot_be_written(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_building(monkeypatch)  # the folder is tried before anything is computed
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written.*BAYESAGG_DATA"):
        qm9.load(path=tables, folder=tmp_path / "file" / "data")


def test_package_absent_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install qm9pack"):
        qm9.load(folder=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_incomplete_package_is_refused(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qm9pack_source, "installed_folder", lambda: tables)
    with pytest.raises(DataError, match=r"expected .*130831"):
        qm9.load(folder=tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.parametrize("kind", [{"source": "web"}, {"features": "all"}])
def test_unknown_choice(kind: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="unknown"):
        qm9.load(**kind)


def test_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"qm9_part1\.csv"):
        qm9.load(path=tmp_path)


def build(tables: Path, folder: Path, line: Any) -> None:
    line.send("ready")
    line.recv()
    line.send(qm9.load(path=tables, folder=folder).sha256)


def test_two_processes_build_at_once(tables: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    line, end = FORKED.Pipe()
    other = FORKED.Process(target=build, args=(tables, folder, end))
    other.start()
    assert line.recv() == "ready"
    line.send("go")
    mine = qm9.load(path=tables, folder=folder).sha256
    assert line.recv() == mine
    other.join()
    assert other.exitcode == 0
    line.close()
    end.close()
    (file,) = folder.iterdir()
    assert cache.read(file)[1]["sha256"] == mine


def test_progress_bar(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    qm9.load(path=tables, folder=tmp_path / "data")
    captured = capsys.readouterr()
    assert "Building QM9" in captured.err
    assert captured.out == ""
