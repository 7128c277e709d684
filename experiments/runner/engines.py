"""Where jobs run: processes on this machine, or the jobs of a cluster's queue.

Both are executors in the sense of ``concurrent.futures``; scheduling is theirs.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from experiments.errors import OutputError, SettingsError
from experiments.runner.plan import Job
from experiments.runner.worker import Outcome, prepare, work
from experiments.settings import require

__all__ = ["Engine", "Handle", "Local", "Submitit"]


class Handle(Protocol):
    """A submitted job."""

    def done(self) -> bool:
        """Whether it has ended, however."""

    def result(self) -> Outcome:
        """How; raises when its process died."""


class Engine(Protocol):
    """Takes jobs."""

    jobs: int

    def submit(self, job: Job) -> Handle:
        """Have a job done, when there is room."""

    def close(self, *, stop: bool) -> None:
        """Wait for what is running, or stop it."""


class Local:
    """So many processes on this machine.

    Args:
        jobs: Processes side by side.
        threads: CPU threads of each; None shares the cores out.
    """

    def __init__(self, jobs: int, threads: int | None = None) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        require(threads is None or threads >= 1, "threads", threads, "give at least 1")
        self.jobs = jobs
        self.threads = threads or max(1, (os.cpu_count() or 1) // jobs)
        # Not forked: torch's threads, and CUDA, do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._before = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=prepare, initargs=(self.threads,)
        )

    def submit(self, job: Job) -> Future[Outcome]:
        """Have a job done, when there is room."""
        with _environment(OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads)):
            return self._pool.submit(work, job, self.threads)

    def close(self, *, stop: bool) -> None:
        """Wait for what is running, or stop it; finished epochs are on the disk either way."""
        if stop:
            mine = set(multiprocessing.active_children()) - self._before
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in mine:
                process.terminate()
        self._pool.shutdown(wait=True)


class Submitit:
    """Jobs of a Slurm cluster through ``submitit``, with its folder shared by all machines.

    Args:
        folder: For submitit's scripts and logs.
        jobs: Jobs in the queue's array at a time.
        cluster: ``"slurm"``, or ``"local"`` and ``"debug"`` to try it without one.
        minutes: Time limit of each job; a job that meets it goes on with the next call.
        threads: CPU cores of each job.
        gpus: GPUs of each job.
        parameters: Anything else for the queue (``slurm_partition``, say).

    Raises:
        SettingsError: submitit is not installed.
        OutputError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        jobs: int,
        cluster: str = "slurm",
        minutes: int = 24 * 60,
        threads: int | None = None,
        gpus: int = 0,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        try:
            import submitit
        except ImportError as error:
            raise SettingsError(
                "engine = 'submitit' needs the package submitit: install it with "
                "pip install 'bayesagg_pyro[cluster]', or leave --engine out"
            ) from error
        self.jobs = jobs
        self.threads = threads or 1
        # A folder of this launch's own: submitit unpickles what it finds there.
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="launch-", dir=folder)
        except OSError as error:
            raise OutputError(
                f"cannot write into {folder} ({error.strerror or error}): choose another --out"
            ) from error
        self._executor = submitit.AutoExecutor(folder=own, cluster=cluster)
        extra = {"slurm_array_parallelism": jobs} if cluster == "slurm" else {}
        self._executor.update_parameters(
            timeout_min=minutes,
            cpus_per_task=self.threads,
            gpus_per_node=gpus,
            name="bayesagg",
            **extra,
            **(parameters or {}),
        )
        self._submitted: list[Any] = []

    def submit(self, job: Job) -> Handle:
        """Put a job into the queue."""
        handle: Any = self._executor.submit(work, job, self.threads)
        self._submitted.append(handle)
        typed: Handle = handle
        return typed

    def close(self, *, stop: bool) -> None:
        """Leave the queue alone, or cancel what is in it."""
        if stop:
            for handle in self._submitted:
                handle.cancel()


MakeEngine = Callable[[int], Engine]


@contextmanager
def _environment(**entries: str) -> Iterator[None]:
    """Variables that processes started meanwhile inherit."""
    before = {name: os.environ.get(name) for name in entries}
    os.environ.update(entries)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
