"""Processes that fail, die and are killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.runner import (
    Dask,
    Ending,
    Job,
    Local,
    Place,
    Queue,
    Request,
    State,
    Submitit,
    choose,
    engines,
    execute,
    plan,
    work,
)
from experiments.training import Trainer, results
from tests.experiments.toy import without_times
from tests.forked import FORKED
from tests.runner.jobs import job
from tests.runner.submitit_forks import submitit_forks


@pytest.mark.slow
def test_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing and a dying job before a good one, two at a time."""
    monkeypatch.setattr(engines.multiprocessing, "get_context", lambda method: FORKED)
    fates = ["kill", "error", ""]
    jobs = [job(tmp_path / str(k), fate) for k, fate in enumerate(fates)]
    seen: list[int] = []
    outcomes = execute(
        jobs, lambda n: Local(n, threads=1), 2, lambda so_far: seen.append(len(so_far))
    )
    endings = [outcomes[one].ending for one in jobs]
    assert endings == [Ending.FAILED, Ending.FAILED, Ending.DONE]
    assert "died twice" in outcomes[jobs[0]].message
    assert Place(jobs[0].folder).failure()["type"] == "ProcessDied"
    assert Place(jobs[1].folder).failure()["type"] == "DataError"
    assert seen[0] == 0
    assert seen[-1] == 3


@pytest.mark.parametrize(("torchs", "jobs", "each"), [(1, 1, 1), (4, 1, 4), (4, 4, 2), (4, 16, 1)])
def test_no_more_threads_than_torch_was_given(
    monkeypatch: pytest.MonkeyPatch, torchs: int, jobs: int, each: int
) -> None:
    """As by OMP_NUM_THREADS=1, on a machine of eight cores."""
    monkeypatch.setattr(engines.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(engines.torch, "get_num_threads", lambda: torchs)
    assert Local(jobs).threads == each


SEED = 1
#: Those with something of their own to remember; every one's state is tested in tests/methods.
METHODS = "dwa,igbv2,bayesagg,ensemble-networks"
CHANGES = {
    "bayesagg.pretrain": "1",
    "igbv2.act_after": "3",
    "igbv2.learn_after": "2",
    "ensemble-networks.members": "2",
    "width": "16",
}
COMMAND = [
    *("run", "digits", "--method", METHODS, "--seeds", str(SEED), "--epochs", "4"),
    *("--threads", "1", "--device", "cpu", "--no-estimate"),
    *(part for name, value in CHANGES.items() for part in ("--set", f"{name}={value}")),
]


def command(out: Path) -> None:
    """The command with two jobs; what it starts is forked from it."""
    fork = multiprocessing.get_context("fork")
    engines.multiprocessing.get_context = lambda method: fork  # type: ignore[attr-defined]
    with (out / "said").open("w") as said, contextlib.redirect_stdout(said):
        app([*COMMAND, "--jobs", "2", "--out", str(out)], standalone_mode=False)


def settled(record: dict[str, Any]) -> dict[str, Any]:
    """All of a record but where, when and how fast."""
    kept = {k: v for k, v in record.items() if k not in ("environment", "timing")}
    kept["history"] = without_times(record["history"])
    kept["settings"] = {k: v for k, v in record["settings"].items() if k != "threads"}
    return kept


@pytest.mark.slow
def test_killed_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill -9 in the middle of several methods; the same command again gives the same records."""
    out = tmp_path / "killed"
    out.mkdir()
    request = Request(
        "digits", choose(METHODS), (SEED,), changes={**CHANGES, "device": "cpu", "epochs": 4}
    )
    jobs = plan(request, out)
    deadline = time.monotonic() + 240
    first = FORKED.Process(target=command, args=(out,))
    first.start()
    while sum(Place(one.folder).checkpoint.exists() for one in jobs) < len(jobs) // 2 + 1:
        assert first.is_alive(), (out / "said").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.join()
    while any(not _free(one.folder) for one in jobs if one.folder.exists()):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)
    done = {
        one.folder: Place(one.folder).results.stat().st_mtime_ns
        for one in jobs
        if Place(one.folder).state() is State.DONE
    }
    assert len(done) < len(jobs), "nothing was left to do: kill earlier"

    monkeypatch.setattr(engines.multiprocessing, "get_context", lambda method: FORKED)
    second = CliRunner().invoke(app, [*COMMAND, "--jobs", "1", "--out", str(out)])
    assert second.exit_code == 0, second.output
    for folder, written in done.items():
        assert Place(folder).results.stat().st_mtime_ns == written
    for one in jobs:
        # Sums are rounded as the threads cut them.
        run = replace(one.run, settings=replace(one.run.settings, threads=1))
        whole = Trainer(run, tmp_path / "whole" / one.folder.parent.name).train()
        assert settled(Place(one.folder).load()) == settled(_as_read(whole, tmp_path))


def _free(folder: Path) -> bool:
    with Place(folder).locked() as mine:
        return mine


def _as_read(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """As it comes back from a file."""
    path = folder / "record.json"
    results.save(path, record)
    return results.load(path)


@pytest.mark.slow
def test_a_worker_of_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job at a time; each pauses at the time limit, and one that dies is tried again."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed.utils, "_forkserver_preload_set", True)  # above
    died = tmp_path / "died"
    jobs = [job(tmp_path / str(k), fate) for k, fate in enumerate([f"once {died}", ""])]
    processes: set[int] = set()
    most = 0

    def tick(outcomes: Any) -> None:
        nonlocal most
        said = [Place(one.folder).status() for one in jobs if one not in outcomes]
        processes.update(status["pid"] for status in said if status)
        most = max(most, sum(status.get("state") == "training" for status in said))

    an_epoch = 1e-4
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        outcomes = execute(jobs, lambda n: Dask(n, 1, an_epoch), 1, tick)
    endings = [outcomes[one].ending for one in jobs]
    assert endings == [Ending.DONE, Ending.DONE], outcomes
    assert died.exists()
    assert most <= 1
    assert os.getpid() not in processes
    whole = job(tmp_path / "whole")
    assert work(whole).ending is Ending.DONE
    histories = [without_times(Place(x.folder).load()["history"]) for x in (*jobs, whole)]
    assert histories[0] == histories[1] == histories[2]


@pytest.mark.slow
def test_a_job_goes_on_after_its_time_limit_and_after_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submitit's: to the bit of one that never stopped; at the time limit without its launcher."""
    local = pytest.importorskip("submitit.local.local")
    monkeypatch.setattr(local, "subprocess", None)  # put back at the end
    submitit_forks()
    # A shared file system may be late with the result; here there is none after a death.
    monkeypatch.setattr(local.LocalJob, "_results_timeout_s", 0)
    one = job(tmp_path / "a", "slow", epochs=4)
    signals = [signal.SIGUSR2, signal.SIGKILL]  # the first as the queue does before time is over
    told: list[int] = []
    began: list[Job] = []

    class Counted(Submitit):
        def submit(self, jobs: Any, deadline: Any) -> Any:
            began.extend(jobs)
            return super().submit(jobs, deadline)

    def tick(_: object) -> None:
        status = Place(one.folder).status()
        if len(told) < 2 and status.get("epoch", 0) > len(told) and status["pid"] not in told:
            os.kill(status["pid"], signals[len(told)])
            told.append(status["pid"])

    queue = Queue(time_limit=4)
    outcomes = execute(
        [one], lambda n: Counted(tmp_path / "queue", n, "local", queue=queue), 1, tick
    )
    assert len(told) == 2
    assert outcomes[one].ending is Ending.DONE, outcomes
    assert began == [one, one]  # the second time after its death
    assert Place(one.folder).status()["pid"] not in told
    whole = job(tmp_path / "b", epochs=4)
    assert work(whole).ending is Ending.DONE
    histories = [without_times(Place(x.folder).load()["history"]) for x in (one, whole)]
    assert histories[0] == histories[1]
