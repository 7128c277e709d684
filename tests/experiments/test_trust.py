"""What others wrote is read as data, or refused with one sentence of our own."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from typer.testing import CliRunner

from experiments import methods
from experiments.cifar.benchmark import Cifar
from experiments.cli import app
from experiments.errors import CheckpointError, DamagedDataError, DataError, OutputError
from experiments.files import cache, reading
from experiments.images.decode import Form, _reserve, decode
from experiments.qm9 import pyg_source, qm9pack_source
from experiments.run import Run
from experiments.runner.plan import Job
from experiments.runner.store import Place
from experiments.runner.worker import Ending, work
from experiments.settings import Settings
from experiments.training import CHECKPOINT, RESULTS, Trainer, checkpoints, results
from models import ResNetFeatures, WeightsError
from models.files import DamagedFileError, only_data, parsed, tensors
from tests.experiments.conftest import TABLES
from tests.experiments.toy import Toy

ROOT = Path(__file__).resolve().parents[2]


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.call, (["touch", str(self.marker)],)


@pytest.fixture
def marker(tmp_path: Path) -> Any:
    path = tmp_path / "ran"
    yield path
    assert not path.exists(), "a file ran a command"


READERS = re.compile(
    r"torch\.load\(|pickle\.loads?\(|Unpickler|np\.load\(|allow_pickle=True|read_pickle|shelve|joblib"
    r"|yaml|(?<![\w.])(eval|exec)\(|extractall|unpack_archive|json\.loads?\(|weights_only=False"
)
ALLOWED = {
    "models/files.py": {"torch.load("},
    "experiments/files/reading.py": {"np.load(", "pickle.loads(", "json.loads("},
    "benchmarks/processes.py": {"json.loads("},  # what its own ranks have just found
    "bayesagg_pyro/diagnostics/_lines.py": {"json.loads("},
    "bayesagg_pyro/aggregation/_torchjd_state.py": {"json.loads("},
}


def test_files_are_read_in_one_place() -> None:
    found: dict[str, set[str]] = {}
    for package in ("bayesagg_pyro", "experiments", "models", "benchmarks"):
        for file in (ROOT / package).rglob("*.py"):
            code = re.sub(r"#.*|``[^`]*``", "", file.read_text(encoding="utf-8"))
            if used := {match.group() for match in READERS.finditer(code)}:
                found[str(file.relative_to(ROOT))] = used
    assert found == ALLOWED


PLACES = ("processed/data_v3.pt", "raw/qm9_v3.pt", "processed/pre_transform.pt")


@pytest.mark.parametrize("place", [None, *PLACES, "processed/pre_filter.pt"])
def test_files_of_torch_geometric(
    place: str | None, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    # With RDKit PyTorch Geometric makes graphs from the molecules' own files, not from these.
    monkeypatch.setitem(sys.modules, "rdkit", None)
    from tests.qm9.test_qm9_pyg import graphs_of

    for folder in ("raw", "processed"):
        (tmp_path / folder).mkdir()
    molecules = qm9pack_source.build(TABLES).select(range(3))
    graphs = [vars(graph) for graph in graphs_of(molecules)]
    torch.save(graphs, tmp_path / "raw" / "qm9_v3.pt")
    if place is None:
        for _ in range(2):  # from the raw file, then from the processed one
            assert np.array_equal(pyg_source.build(tmp_path).y, molecules.y)
        return
    bad: Any = ({"x": Evil(marker)}, {}, dict) if "data" in place else [Evil(marker)]
    torch.save(bad, tmp_path / place)
    with pytest.raises(DataError, match="cannot provide QM9") as caught:
        pyg_source.build(tmp_path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_saved_tensors(zipped: bool, tmp_path: Path, marker: Path) -> None:
    file = tmp_path / "file.pt"
    value = {"a": torch.ones(2), "b": [1, "c", None]}
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    assert parsed(file, tensors)["b"] == value["b"]
    torch.save({"a": Evil(marker)}, file, _use_new_zipfile_serialization=zipped)
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([subprocess.call])  # as careless libraries do
    try:
        with pytest.raises(DamagedFileError):
            parsed(file, tensors)
        with only_data(), pytest.raises(pickle.UnpicklingError):
            torch.load(file, weights_only=False)
        assert subprocess.call in torch.serialization.get_safe_globals()
        assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_pickles_need_a_published_checksum(tmp_path: Path, marker: Path) -> None:
    file = tmp_path / "meta"
    file.write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(
        DamagedDataError, match=r"its checksum is not the published one.*: fetch it"
    ):
        reading.unpickled(file, "0" * 32, "fetch it")
    file.write_bytes(pickle.dumps({"a": 1}))
    found = reading.unpickled(file, hashlib.md5(file.read_bytes()).hexdigest(), "")
    assert found == {"a": 1}


@pytest.mark.parametrize("source", ["cifar10", "cifar100"])
def test_a_crafted_folder_of_cifar(
    source: Any, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = getattr(torchvision.datasets, source.upper())
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    for name, _ in (*kind.train_list, *kind.test_list, (kind.meta["filename"], "")):
        (folder / name).write_bytes(pickle.dumps(Evil(marker)))

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    with pytest.raises(DataError, match="neither complete in"):
        Cifar(source=source, data=str(tmp_path)).load(torch.device("cpu"))


def test_weights_in_the_cache_of_torch(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    file = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    for content in ({"conv1.weight": Evil(marker)}, {"conv1.weight": "text"}):
        torch.save(content, file)
        with pytest.raises(WeightsError):
            ResNetFeatures(18, weights="imagenet")


def test_images_of_other_formats_and_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "program.eps")
    (tmp_path / "program.eps").rename(tmp_path / "program.jpg")  # pillow would call ghostscript
    Image.new("RGB", (40, 40)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for name in ("program.jpg", "bomb.png"):
        with pytest.raises(Exception, match=r"cannot identify|exceeds limit"):
            decode(tmp_path / name, Form(8))


DAMAGED: dict[str, bytes] = {
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "nested a little": b'{"a": ' * 60 + b"1" + b"}" * 60,
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "huge": b'{"a": 1e999}',
    "huge whole": b'{"a": 1' + b"0" * 400 + b"}",
    "very long": b'{"a": 1' + b"0" * 9000 + b"}",
    "surrogate": b'{"a": "\\ud800"}',
    "latin-1": '{"a": "ü"}'.encode("latin-1"),
    "empty": b"",
    "list": b"[1]",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_json_that_is_none(name: str, tmp_path: Path) -> None:
    file = tmp_path / RESULTS
    file.write_bytes(DAMAGED[name])
    with pytest.raises(DamagedDataError, match="is damaged") as caught:
        results.load(file)
    assert len(str(caught.value).splitlines()) == 1


def test_unreadable_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    def readers(path: Path) -> list[Callable[[], object]]:
        return [
            lambda: results.load(path),
            lambda: cache.read(path),
            lambda: checkpoints.load(path),
        ]

    for place in (loop, tmp_path):
        for read in readers(place):
            with pytest.raises((DataError, CheckpointError), match="says nothing") as caught:
                read()
            assert "delete" not in str(caught.value)
            assert not isinstance(caught.value, DamagedDataError)
    file = tmp_path / "file"
    file.write_bytes(b"whole")
    denied = OSError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(Path, "open", lambda *_, **__: (_ for _ in ()).throw(denied))
    for read in readers(file):
        with pytest.raises((DataError, CheckpointError), match="Permission denied"):
            read()


def toy(epochs: int = 1) -> Run:
    settings = Settings(epochs=epochs, batch_size=64, device="cpu")
    return Run(Toy(), "ls", methods.options("ls", {}), settings)


def test_results_that_cannot_be_read_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(toy(), tmp_path / "a")
    place = Place(job.folder)
    place.folder.mkdir()
    place.results.symlink_to(place.results)
    outcome = work(job)
    assert outcome.ending is Ending.FAILED
    assert "cannot be read" in outcome.message
    assert place.results.is_symlink()
    done = CliRunner().invoke(app, ["digits", "--method", "ls", "--out", str(place.folder)])
    assert done.exit_code == 2
    assert "holds a run already" in " ".join(done.output.split())


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = work(Job(toy(), tmp_path / "file" / "a"))
    assert outcome.ending is Ending.FAILED
    assert "cannot write into the output folder" in outcome.message


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Trainer(toy(), folder).train()
    return folder


RECORDS: list[Any] = [
    lambda r: r["benchmark"].update(name=3),
    lambda r: r.update(method=[]),
    lambda r: r["settings"].update(seed="0"),
    lambda r: r["best"].update(test=[1, 2]),
    lambda r: r["best"]["test"].update(sine="0.5"),
    lambda r: r["best"]["test"].pop("sine"),
    lambda r: r["best"].update(epoch=7),
    lambda r: r["last"].update(test_score=True),
    lambda r: r.update(history={}),
    lambda r: r.update(history=[]),
    lambda r: r["history"][0].update(score=None),
    lambda r: r["history"][0].update(epoch=-1),
    lambda r: r.update(history=2 * r["history"]),
    lambda r: r["settings"].update(epochs=-1),
    lambda r: r["tasks"].append(r["tasks"][0]),
    lambda r: r["history"][0].update(phase="other"),
    lambda r: r["tasks"][0].update(symbol=None),
    lambda r: r.pop("constant"),
    lambda r: r.update(weights=[{"epoch": 1, "by_example": 3, "applied": [1.0]}]),
    lambda r: r["data"].update(sizes=[1]),
]


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_records_of_other_types(number: int, finished: Path, tmp_path: Path) -> None:
    record = json.loads((finished / RESULTS).read_text(encoding="utf-8"))
    RECORDS[number](record)
    (tmp_path / RESULTS).write_text(json.dumps(record), encoding="utf-8")
    for command in (["figures", str(tmp_path), "--out", str(tmp_path / "f")], ["report"]):
        if command == ["report"]:
            command = ["report", str(tmp_path)]
        done = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        if command[0] == "figures":
            assert done.exit_code == 2, done.output
            assert not (tmp_path / "f").exists()


CHECKPOINTS: list[Any] = [
    lambda s: s.pop("identity"),
    lambda s: s.pop("history"),
    lambda s: s.update(history=torch.ones(2)),
    lambda s: s["history"][0].update(epoch=torch.ones(())),
    lambda s: s["history"][0].update(score=float("nan")),
    lambda s: s["identity"].update(method=torch.ones(3)),
    lambda s: s.update(method=[1]),
    lambda s: s["method"].clear(),
    lambda s: s.update(optimizer={0: {"step": torch.ones(())}}),
    lambda s: s["optimizer"][0].update(exp_avg=torch.ones(1)),
    lambda s: s["optimizer"][0]["exp_avg_sq"].fill_(float("inf")),
    lambda s: s["optimizer"].update(text={}),
    lambda s: s.update(schedule={"rate": "fast"}),
    lambda s: s.update(best=None),
    lambda s: s["best"].update(state={}),
    lambda s: s["best"].update(epoch=9),
    lambda s: s["best"].update(score=-9.0),
    lambda s: s["history"][0]["validation"].clear(),
    lambda s: s.update(weights=[{"epoch": 1}]),
    lambda s: next(iter(s["method"]["backbone"].values())).fill_(float("nan")),
]


@pytest.mark.parametrize("number", range(len(CHECKPOINTS)))
def test_checkpoints_of_other_content(number: int, finished: Path, tmp_path: Path) -> None:
    state = torch.load(finished / CHECKPOINT, weights_only=True)
    CHECKPOINTS[number](state)
    torch.save(state, tmp_path / CHECKPOINT)
    left = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(CheckpointError) as caught:
        Trainer(toy(2), tmp_path, resume=True).train()
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / CHECKPOINT).read_bytes() == left


@contextmanager
def small_files() -> Iterator[None]:
    """A limit on what this process writes; no fixture, since coverage writes between phases."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands in for it; torch's writer hides the reason of either."""
    for name in ("a.pt", "b.npz"):
        (tmp_path / name).write_bytes(b"old")
    with small_files():
        with pytest.raises(OutputError, match="File too large"):
            checkpoints.save(tmp_path / "a.pt", {"x": [torch.ones(3000) for _ in range(40)]})
        with pytest.raises(DataError, match="File too large"):
            cache.write(tmp_path / "b.npz", {"x": np.random.default_rng(0).random(9000)}, {})
        with pytest.raises(OSError, match="File too large"):
            _reserve(tmp_path / "c", 30_000)
    assert {p.name for p in tmp_path.iterdir()} == {"a.pt", "b.npz", "c"}
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.npz").read_bytes() == b"old"


@pytest.mark.parametrize(
    "command",
    [
        ["digits", "--out", ""],
        ["digits", "--out="],
        ["qm9", "--data", " "],
        ["report", ""],
        ["run", "digits", "--out", ""],
        ["compare", "qm9-small", "--figure", ""],
        ["figures", "a", ""],
    ],
)
def test_empty_arguments(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2, done.output
    assert "cannot work: give it a value" in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_options_nested_without_end() -> None:
    deep = "[" * 100_000
    done = CliRunner().invoke(app, ["digits", "--method", "cagrad", "--set", f"c={deep}"])
    assert done.exit_code == 2
    assert "Traceback" not in done.output
