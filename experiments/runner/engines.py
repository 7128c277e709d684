"""Where jobs run: processes on this machine, or the jobs of a cluster's queue.

Both are executors in the sense of ``concurrent.futures``; scheduling is theirs.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from experiments.errors import OutputError, SettingsError
from experiments.runner.plan import Job
from experiments.runner.store import Place
from experiments.runner.worker import Outcome, prepare, work
from experiments.settings import require

__all__ = ["Engine", "Handle", "Local", "MakeEngine", "Queue", "Submitit"]


class Handle(Protocol):
    """A submitted job."""

    def done(self) -> bool:
        """Whether it has ended, however."""

    def result(self) -> Outcome:
        """How; raises when its process died."""


class Engine(Protocol):
    """Takes jobs.

    Attributes:
        room: How many it may be given at a time; None where it keeps the rest waiting itself.
        isolated: Whether a process that dies takes no other job along.
        threads: CPU threads of each job.
    """

    threads: int
    room: int | None
    isolated: bool

    def submit(self, jobs: Sequence[Job], deadline: float | None) -> list[Handle]:
        """Have jobs done, when there is room."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives that is run where jobs are."""

    def close(self, *, stop: bool) -> None:
        """Wait for what is running, or stop it."""


MakeEngine = Callable[[int], Engine]


class Local:
    """So many processes on this machine.

    Args:
        jobs: Processes side by side.
        threads: CPU threads of each; None shares the cores out.
    """

    room: int | None = None
    isolated: bool = False

    def __init__(self, jobs: int, threads: int | None = None) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        require(threads is None or threads >= 1, "threads", threads, "give at least 1")
        self.threads = threads or max(1, (os.cpu_count() or 1) // jobs)
        # Not forked: torch's threads, and CUDA, do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._before = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=prepare, initargs=(self.threads,)
        )

    def submit(self, jobs: Sequence[Job], deadline: float | None) -> list[Handle]:
        """Have jobs done, when there is room."""
        with _environment(OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads)):
            return [self._submit(job, deadline) for job in jobs]

    def _submit(self, job: Job, deadline: float | None) -> Handle:
        try:
            return self._pool.submit(work, job, self.threads, deadline)
        except BrokenExecutor as error:  # an earlier job took the pool with it
            lost: Future[Outcome] = Future()
            lost.set_exception(error)
            return lost

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """On this machine, and so in this process."""
        return function(*arguments)

    def close(self, *, stop: bool) -> None:
        """Wait for what is running, or stop it; finished epochs are on the disk either way."""
        if stop:
            mine = set(multiprocessing.active_children()) - self._before
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in mine:
                process.terminate()
        self._pool.shutdown(wait=True)


@dataclass(frozen=True)
class Queue:
    """What every job asks a cluster's queue for.

    Attributes:
        partition: Of the cluster.
        account: Who pays.
        time_limit: Minutes of each job; one that meets it is queued again and goes on, as long as
            it finished an epoch.
        gpus: Of each job.
        memory: Of each job, in GB.
        more: Any other parameter of submitit, ``{"slurm_qos": "high"}``.
    """

    partition: str | None = None
    account: str | None = None
    time_limit: int = 1440
    gpus: int = 0
    memory: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """As submitit wants them; None stands for "not set"."""
        return {
            "timeout_min": self.time_limit,
            "gpus_per_node": self.gpus,
            "mem_gb": self.memory,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            **self.more,
        }


class Submitit:
    """Jobs of a Slurm cluster through ``submitit``, with its folder shared by all machines.

    Args:
        folder: For submitit's scripts and logs.
        jobs: Jobs at a time, of an array on a cluster.
        cluster: ``"slurm"``, or ``"local"`` and ``"debug"`` to try it without one.
        threads: CPU cores of each job.
        queue: What else each asks for.

    Raises:
        SettingsError: submitit is not installed or takes no such parameter, or this is no cluster.
        OutputError: The folder cannot be written.
    """

    isolated: bool = True

    def __init__(
        self,
        folder: Path,
        jobs: int,
        cluster: str = "slurm",
        threads: int | None = None,
        queue: Queue = Queue(),
    ) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        try:
            import submitit
        except ImportError as error:
            raise SettingsError(
                "engine = 'submitit' needs the package submitit: install it with "
                "pip install 'bayesagg_pyro[cluster]', or leave --engine out"
            ) from error
        # An array is the queue's to pace; single jobs are not.
        self.room = None if cluster == "slurm" else jobs
        self.threads = threads or 1
        try:
            self._executor: Any = submitit.AutoExecutor(
                folder=_own_folder(folder),
                cluster=cluster,
                slurm_max_num_timeout=_EVER,
                local_max_num_timeout=_EVER,
            )
            self._executor.update_parameters(
                cpus_per_task=self.threads,
                name="bayesagg",
                slurm_array_parallelism=jobs,
                **queue.parameters(),
            )
        except (RuntimeError, NameError, ValueError, AssertionError) as error:
            raise SettingsError(f"engine = {cluster!r} cannot work: {error}") from error
        self._submitted: list[Any] = []

    def submit(self, jobs: Sequence[Job], deadline: float | None) -> list[Handle]:
        """Put jobs into the queue, several as one array."""
        handles: list[Handle] = self._executor.submit_array(
            [_Requeued(job, self.threads, deadline) for job in jobs]
        )
        self._submitted += handles
        return handles

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As a job of its own, which is waited for."""
        return self._executor.submit(function, *arguments).result()

    def close(self, *, stop: bool) -> None:
        """Leave the queue alone, or cancel what is in it."""
        if stop:
            for handle in self._submitted:
                handle.cancel()


_EVER: Final = 1_000_000
"""Times that a job may be queued again: as long as it gets on."""


@dataclass
class _Requeued:
    """A job of a queue, which begins anew, from its checkpoint, when it meets its time limit."""

    job: Job
    threads: int
    deadline: float | None

    def __call__(self) -> Outcome:
        self._begun_with = Place(self.job.folder).epochs()
        return work(self.job, self.threads, self.deadline)

    def checkpoint(self) -> Any:
        """Called by submitit, while the job is at work, shortly before its time is over.

        Raises:
            SettingsError: The job has not finished an epoch, and never would.
        """
        from submitit.helpers import DelayedSubmission

        if Place(self.job.folder).epochs() <= self._begun_with:
            raise SettingsError(
                "no epoch was finished within the time limit of the queue: give a longer "
                "--time-limit"
            )
        return DelayedSubmission(_Requeued(self.job, self.threads, self.deadline))


def _own_folder(folder: Path) -> str:
    """A folder of this launch's own: submitit unpickles what it finds there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="launch-", dir=folder)
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder} ({error.strerror or error}): choose another --out"
        ) from error


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
