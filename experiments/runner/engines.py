"""What an engine is, and the one of processes on this machine; others are in ``queues``."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from experiments.runner.plan import Job
from experiments.runner.worker import JobOutcome, prepare, work
from experiments.settings import require


class Handle(Protocol):
    """A submitted job."""

    def done(self) -> bool:
        """Whether it has ended, however."""

    def result(self) -> JobOutcome:
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
        threads: CPU threads of each; None: torch's choice (``OMP_NUM_THREADS``), or a share of
            the cores where these are fewer.
    """

    room: int | None = None
    isolated: bool = False

    def __init__(self, jobs: int, threads: int | None = None) -> None:
        require(jobs >= 1, "jobs", jobs, "give at least 1")
        require(threads is None or threads >= 1, "threads", threads, "give at least 1")
        share = min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs)
        self.threads = threads or max(1, share)
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
            lost: Future[JobOutcome] = Future()
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
