"""Processes that fail, die and are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import results
from experiments.runner import (
    Ending,
    Local,
    Place,
    Request,
    State,
    choose,
    engines,
    execute,
    plan,
)
from experiments.training import Trainer
from tests.experiments.toy import without_times
from tests.runner.jobs import job

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing and a dying job before a good one, two at a time."""
    # Five processes that do not import everything anew.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.runner", "tests.runner.jobs"])
    monkeypatch.setattr(engines.multiprocessing, "get_context", lambda method: context)
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


SEED = 1
#: Those with something of their own to remember; every one's state is tested in tests/methods.
METHODS = "ls,dwa,uw,pcgrad,igbv2,bayesagg,ensemble-networks"
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


def start(out: Path, jobs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", *COMMAND, "--jobs", str(jobs), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def settled(record: dict[str, Any]) -> dict[str, Any]:
    """All of a record but where, when and how fast."""
    kept = {k: v for k, v in record.items() if k not in ("environment", "timing")}
    kept["history"] = without_times(record["history"])
    kept["settings"] = {k: v for k, v in record["settings"].items() if k != "threads"}
    return kept


@pytest.mark.slow
def test_killed_and_continued(tmp_path: Path) -> None:
    """A kill -9 in the middle of several methods; the same command again gives the same records."""
    request = Request(
        "digits", choose(METHODS), (SEED,), changes={**CHANGES, "device": "cpu", "epochs": 4}
    )
    jobs = plan(request, tmp_path / "killed")
    deadline = time.monotonic() + 240
    with start(tmp_path / "killed", jobs=2) as first:
        while sum(Place(one.folder).checkpoint.exists() for one in jobs) < len(jobs) // 2 + 1:
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    while any(not _free(one.folder) for one in jobs if one.folder.exists()):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)
    done = {
        one.folder: Place(one.folder).results.stat().st_mtime_ns
        for one in jobs
        if Place(one.folder).state() is State.DONE
    }
    assert len(done) < len(jobs), "nothing was left to do: kill earlier"

    with start(tmp_path / "killed", jobs=1) as second:
        output, _ = second.communicate(timeout=240)
    assert second.returncode == 0, output
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
