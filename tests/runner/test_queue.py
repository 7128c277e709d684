"""Engines for clusters: submitit's queue, what Slurm is told, a Dask that is not there."""

from __future__ import annotations

import importlib
import os
import stat
import time
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.errors import SettingsError
from experiments.runner import (
    Dask,
    Ending,
    Job,
    JobOutcome,
    Place,
    Queue,
    Submitit,
    estimate,
    execute,
    work,
)
from tests.runner.jobs import Here, job

submitit = pytest.importorskip("submitit")
cloudpickle = pytest.importorskip("cloudpickle")


def engine(tmp_path: Path, cluster: str = "local", jobs: int = 2, **queue: Any) -> Submitit:
    return Submitit(tmp_path / "queue", jobs, cluster, queue=Queue(**{"time_limit": 4, **queue}))


def test_a_job_that_cannot_get_on_says_so(tmp_path: Path) -> None:
    one = job(tmp_path / "a")
    queue = engine(tmp_path)
    caught: list[Any] = []
    queue._executor.submit_array = lambda tasks: caught.extend(tasks) or tasks
    queue.submit([one], None)
    (task,) = caught
    task._begun_with = 0
    with pytest.raises(SettingsError, match="give a longer --time-limit"):
        task.checkpoint()
    Place(one.folder).folder.mkdir()
    Place(one.folder).say(state="training", epoch=1, epochs=2)
    assert isinstance(task.checkpoint(), submitit.helpers.DelayedSubmission)


def test_only_those_that_get_on_are_begun_again(tmp_path: Path) -> None:
    """All at once: in a queue a process takes no other along."""
    stuck, moving = (job(tmp_path / name) for name in ("stuck", "moving"))
    began: list[set[Job]] = []

    class Dying(Here):
        """Every process dies; one job's after another epoch, until it has three."""

        isolated = True

        def submit(self, jobs: Any, deadline: Any) -> Any:
            began.append(set(jobs))
            handles: list[Future[JobOutcome]] = [Future() for _ in jobs]
            for one, handle in zip(jobs, handles, strict=True):
                epoch = len(began) if one is moving else 0
                Place(one.folder).folder.mkdir(exist_ok=True)
                Place(one.folder).say(state="training", epoch=epoch, epochs=3)
                if epoch == 3:
                    handle.set_result(JobOutcome(Ending.DONE))
                else:
                    handle.set_exception(BrokenExecutor())
            return handles

    outcomes = execute([stuck, moving], Dying, 2)
    assert outcomes[moving].ending is Ending.DONE
    assert outcomes[stuck].ending is Ending.FAILED
    assert "died twice" in outcomes[stuck].message
    assert Place(stuck.folder).failure()["type"] == "ProcessDied"
    assert began == [{stuck, moving}, {stuck, moving}, {moving}]


class Handle:
    """A job that is done when somebody has looked twice."""

    def __init__(self) -> None:
        self.looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 2

    def result(self) -> JobOutcome:
        return JobOutcome(Ending.DONE)


def test_no_more_jobs_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = importlib.import_module("experiments.runner.execute")
    monkeypatch.setattr(scheduler, "_POLL_SECONDS", 0.0)
    queue = engine(tmp_path, jobs=2)
    handles: list[Handle] = []
    most: list[int] = []

    def submit(tasks: list[Any]) -> list[Handle]:
        made = [Handle() for _ in tasks]
        handles.extend(made)
        most.append(sum(handle.looks <= 2 for handle in handles))
        return made

    queue._executor.submit_array = submit
    outcomes = execute([job(tmp_path / str(k)) for k in range(7)], lambda n: queue, 2)
    assert len(outcomes) == 7
    assert max(most) == 2


def test_what_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs as one array of which so many run at a time, in a partition, on an account."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"srun": "", "sbatch": f"cp $1 {tmp_path}/told; echo job 7"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    queue = engine(
        tmp_path,
        "slurm",
        partition="gpu",
        account="lab",
        gpus=1,
        memory=8.0,
        time_limit=90,
        more={"slurm_qos": "high"},
    )
    queue.submit([job(tmp_path / str(k)) for k in range(5)], None)
    told = (tmp_path / "told").read_text()
    for line in (
        *("--array=0-4%2", "--partition=gpu", "--account=lab", "--time=90", "--qos=high"),
        *("--gpus-per-node=1", "--mem=8GB"),
    ):
        assert f"#SBATCH {line}\n" in told
    with pytest.raises(SettingsError, match="Unknown argument 'colour'"):
        engine(tmp_path, "slurm", more={"slurm_colour": "red"})


def test_no_cluster_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingsError, match='Could not detect "srun"'):
        engine(tmp_path, "slurm")


def test_the_estimate_is_a_job_of_the_queue(tmp_path: Path) -> None:
    queue, one = engine(tmp_path), job(tmp_path / "a")

    def submit(*task: Any) -> Any:
        function, *arguments = cloudpickle.loads(cloudpickle.dumps(task))
        return SimpleNamespace(result=lambda: function(*arguments))

    queue._executor.submit = submit
    cost = queue.call(estimate, [one], 1, 1)
    assert cost.seconds[one] > 0
    assert not one.folder.exists()  # it only tries


def test_a_job_pauses_at_its_limit(tmp_path: Path) -> None:
    one = job(tmp_path / "a", epochs=3)
    assert work(one, limit=0.01) == JobOutcome(Ending.PAUSED, "1 of 3 epochs")
    assert work(one, deadline=time.time() + 60, limit=0.01).ending is Ending.PAUSED
    assert work(one, deadline=time.time() + 60, limit=60).ending is Ending.DONE


def test_no_scheduler_of_dask() -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")  # whose settings are to be there before others are set
    nowhere = {
        "scheduler-address": "tcp://127.0.0.1:1",
        "distributed.comm.timeouts.connect": "0.1s",
    }
    with (
        dask.config.set(nowhere),
        pytest.raises(SettingsError, match="unset DASK_SCHEDULER_ADDRESS"),
    ):
        Dask(1)
