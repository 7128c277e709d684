"""The doctor names what is wrong, what mends it, and never fails itself."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import doctor, registry
from experiments.cli import app
from experiments.dense.rooms import Camera
from experiments.dense.scenes import as_files
from experiments.doctor import State
from experiments.errors import DataError
from experiments.files import write_text
from tests.experiments.conftest import TABLES
from tests.images.fixtures import chest_release, class_folder, utk_folder

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, code: int, columns: int = 200) -> str:
    env = {"COLUMNS": str(columns), "TERM": "dumb"}
    result = CliRunner().invoke(app, ["doctor", *arguments], env=env)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_all_is_well() -> None:
    text = run("digits", code=0)
    release = importlib.metadata.version("torch")
    for word in (
        "1,797 images",
        f"{release} (>=2.4)",
        sys.executable,
        "All that is asked for",
    ):
        assert word in text


def test_every_benchmark_looks_at_its_data(tmp_path: Path) -> None:
    for name in registry.names():
        assert "look" in vars(registry.find(name)) or name in ("nyuv2", "cityscapes"), name
    assert "there is no file" in run("rand", "--data", str(tmp_path / "absent.csv"), code=1)
    pytest.importorskip("rdkit")
    assert "there is no file" in run("tox21", "--data", str(tmp_path / "absent.csv"), code=1)


def test_without_a_benchmark_no_data_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run(code=0)
    assert all(name in text for name in registry.names())
    assert "there is no folder UTKFace" in text
    assert "What the library needs is there." in text


def test_a_data_folder_with_an_impossible_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESAGG_DATA", "x" * 5000)
    text = run(code=1)
    assert "name another folder in BAYESAGG_DATA" in " ".join(text.split())


def test_a_narrow_terminal_cuts_nothing(tmp_path: Path) -> None:
    texts = [run("utkface", "--data", str(tmp_path), code=1, columns=n) for n in (40, 400)]
    told = str(tmp_path)
    for text in texts:
        assert "…" not in text
        assert told in "".join(text.split())


@pytest.mark.parametrize(
    ("bounds", "release", "fits"),
    [
        (">=2.4", "2.10.0+cpu", True),
        (">=2.4", "2.4", True),
        (">=2.4.1", "2.4", False),
        (">=0.18,<0.19", "0.19.0", False),
        (">=0.18,<0.19", "0.18.9", True),
        ("==1.0", "1.0.0", True),
        ("!=1.0", "1.0.0", False),
        (">1,<=2", "2.0", True),
        ("", "3", True),
    ],
)
def test_bounds(bounds: str, release: str, fits: bool) -> None:
    assert doctor.supports(bounds, release) is fits


def test_what_is_stated_is_what_pip_is_told() -> None:
    found = {(one.name, one.extra): one for one in doctor.stated()}
    assert found["torch", ""].bounds == ">=2.4"
    assert found["torchjd", "torchjd"].bounds == ">=0.18,<0.19"
    assert found["gpytorch", "gp"].bounds == ">=1.12"
    assert found["scikit-learn", "experiments"].module == "sklearn"
    assert not {extra for _, extra in found} & {"dev", "docs"}


def one(name: str) -> doctor.Finding:
    (found,) = (f for f in doctor.packages({name: "me"}, imports=False) if f.name == name)
    return found


def test_a_broken_package_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filelock.py").write_text("raise RuntimeError('built for\\nanother machine')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "filelock", raising=False)
    found = one("filelock")
    assert found.state is State.WRONG
    assert "fails to import: RuntimeError: built for another machine" in found.told
    assert found.remedy == 'pip install --force-reinstall "filelock>=3.12"'


def test_an_old_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1")
    assert one("torchjd").state is State.WRONG
    assert "0.1 is not >=0.18,<0.19" in one("torchjd").told

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert one("rdkit").state is State.MISSING
    assert one("rdkit").remedy == 'pip install "rdkit>=2024.3"'
    others = {f.name: f.state for f in doctor.packages({}, imports=False)}
    assert others["torch"] is State.MISSING  # the library needs it
    assert others["rdkit"] is State.LEFT


@pytest.mark.parametrize(
    ("package", "arguments", "told"),
    [("torch", ["doctor"], "torch"), ("typer", ["--help"], "pip install -e . --group experiments")],
)
def test_without_a_package_that_everything_needs(
    package: str, arguments: list[str], told: str
) -> None:
    code = f"""
import runpy, sys
sys.modules[{package!r}] = None
sys.argv = ["experiments", *{arguments!r}]
runpy.run_module("experiments", run_name="__main__", alter_sys=True)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert told in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_mistakes_are_one_line() -> None:
    assert "error: benchmark = 'magic' is unknown" in run("magic", code=2)
    assert "name one before it" in run("--data", "x", code=2)


def test_an_unimportable_benchmark_is_a_finding() -> None:
    (found,) = doctor.benchmarks(["no_such_module:Class"], None)
    assert found.state is State.MISSING
    assert "no_such_module" in found.told


def look(name: str, data: Path | None) -> str:
    benchmark = registry.find(name)()
    return (benchmark if data is None else benchmark.at(str(data))).look()


def test_data_that_are_there(tmp_path: Path) -> None:
    assert "48 images" in look("chestxray14", chest_release(tmp_path / "chest"))
    assert "60 faces" in look("utkface", utk_folder(tmp_path / "faces", malformed=()))
    assert "42 images" in look("cifar-mtl", class_folder(tmp_path / "classes"))
    as_files(tmp_path / "rooms", "nyuv2", {"train": 4, "val": 2}, Camera(8, 8), 0)
    assert "3/1/2 images" in look("nyuv2", tmp_path / "rooms")
    assert "tables in" in look("qm9", TABLES)
    cifar = tmp_path / "cifar" / "cifar-100-python"
    cifar.mkdir(parents=True)
    for part in ("train", "test", "meta"):
        (cifar / part).touch()
    assert "cifar100 in" in look("cifar-mtl", tmp_path / "cifar")


def test_data_that_are_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = chest_release(tmp_path / "chest")
    next(release.rglob("*.png")).unlink()
    as_files(tmp_path / "rooms", "nyuv2", {"train": 4, "val": 2}, Camera(8, 8), 0)
    (tmp_path / "rooms" / "val" / "depth" / "1.npy").unlink()
    (tmp_path / "cifar" / "cifar-100-python").mkdir(parents=True)
    write_text(tmp_path / "qm9.npz", "half of it")
    for name, place, told in (
        ("chestxray14", release, "1 of"),
        ("nyuv2", tmp_path / "rooms", "do not hold the same numbers"),
        ("cifar-mtl", tmp_path / "cifar", "lacks train, test, meta"),
        ("qm9", tmp_path / "qm9.npz", "is no whole data file; delete it"),
    ):
        with pytest.raises(DataError, match=told):
            look(name, place)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_benchmark_says_something_where_nothing_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESAGG_DATA", str(tmp_path / "cache"))
    (found,) = doctor.benchmarks([name], None)
    assert found.state in (State.FINE, State.MISSING)
    assert len(found.told) > 10
    assert not list(tmp_path.iterdir())  # it makes nothing
