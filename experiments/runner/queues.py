"""Engines that hand jobs to other machines: a Slurm queue through submitit, a Dask cluster.

A job that meets the time limit is handed in again, and goes on from its checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.errors import OutputError, SettingsError
from experiments.runner.engines import Handle
from experiments.runner.plan import Job
from experiments.runner.store import Place
from experiments.runner.worker import Ending, JobOutcome, work
from experiments.settings import require


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
                "pip install submitit, or leave --engine out"
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

    def __call__(self) -> JobOutcome:
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


class Dask:
    """Workers of a Dask cluster, one job at a time each.

    The cluster is the one that Dask is told of (``DASK_SCHEDULER_ADDRESS`` in the environment, or
    its configuration), such as one that dask-jobqueue started; else so many workers are started on
    this machine.

    Args:
        jobs: Jobs at a time.
        threads: CPU threads of each job.
        time_limit: Minutes after which a job pauses, at the end of an epoch, and is handed in
            again.

    Raises:
        SettingsError: Dask is not installed, no scheduler answers there, or a worker would take
            several jobs into one process.
    """

    isolated: bool = True

    def __init__(self, jobs: int, threads: int | None = None, time_limit: float = 1440) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        require(time_limit > 0, "time_limit", time_limit, "give a positive number")
        try:
            import dask
            import distributed
        except ImportError as error:
            raise SettingsError(
                "engine = 'dask' needs the package distributed: install it with "
                "pip install distributed, or leave --engine out"
            ) from error
        self.room: int | None = jobs
        self.threads, self._limit = threads or 1, 60.0 * time_limit
        address = dask.config.get("scheduler-address", None)
        self._cluster = None
        if address is None:
            # Who dies is counted here (execute), and alone.
            with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
                self._cluster = address = distributed.LocalCluster(
                    n_workers=jobs,
                    threads_per_worker=1,
                    memory_limit=None,
                    dashboard_address=None,
                    silence_logs="CRITICAL",
                )
        try:
            self._client: Any = distributed.Client(address)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"scheduler-address = {address!r}: no Dask scheduler answers ({error}): start it, "
                "or unset DASK_SCHEDULER_ADDRESS for workers on this machine"
            ) from error
        most = max(self._client.nthreads().values(), default=1)
        if most > 1:
            self.close(stop=False)
            raise SettingsError(
                f"a worker of the Dask cluster takes {most} jobs into one process: start workers "
                "with --nthreads 1"
            )
        self._handles: list[_Limited] = []

    def submit(self, jobs: Sequence[Job], deadline: float | None) -> list[Handle]:
        """Hand jobs to the scheduler."""
        handles = [_Limited(self._client, job, self.threads, deadline, self._limit) for job in jobs]
        self._handles += handles
        return [*handles]

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """On a worker."""
        return self._client.submit(function, *arguments, pure=False).result()

    def close(self, *, stop: bool) -> None:
        """Leave; with ``stop`` what has not begun on a cluster of others never does."""
        if stop:
            self._client.cancel([handle.future for handle in self._handles])
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


class _Limited:
    """A job of Dask's, handed in again at its time limit, with a place for others in between."""

    def __init__(self, client: Any, *given: Any) -> None:
        self._client, self._given = client, given
        self._hand_in()

    def _hand_in(self) -> None:
        self.future = self._client.submit(work, *self._given, pure=False)

    def done(self) -> bool:
        if self.future.status == "finished" and self.result().ending is Ending.PAUSED:
            self._hand_in()
        return bool(self.future.done())

    def result(self) -> JobOutcome:
        found: JobOutcome = self.future.result()
        return found
