"""One job in a process of its own: skip, resume or start it, and say how it went."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from experiments.benchmark import Data
from experiments.errors import DamagedCheckpointError, ExperimentError, OutOfTime, RunInterrupted
from experiments.run import Run
from experiments.runner.plan import Job
from experiments.runner.store import Place, State
from experiments.training import Trainer
from experiments.training.reporting import Reporter


class Ending(Enum):
    """How a job ended, as far as this process is concerned."""

    DONE = "done"
    SKIPPED = "done before"
    FAILED = "failed"
    ELSEWHERE = "at work elsewhere"
    INTERRUPTED = "interrupted"
    STOPPED = "out of time"
    PAUSED = "at its time limit"


_LEAST: Final = 15.0
"""Seconds that are worth beginning for."""


class JobOutcome(NamedTuple):
    """How a job ended, and a line about it."""

    ending: Ending
    message: str = ""


def work(
    job: Job, threads: int | None = None, deadline: float | None = None, limit: float | None = None
) -> JobOutcome:
    """Bring one job to its end, or to the end of the last epoch before the deadline.

    What is done is left alone; what was begun goes on from its checkpoint; another process's work
    is not touched. A file that cannot be read is set aside and made again. An error is recorded in
    the job's folder, and does not leave this function.

    Args:
        job: What to do.
        threads: CPU threads where the settings leave them open.
        deadline: In seconds, as ``time.time`` counts them; None for none.
        limit: Seconds after which the job pauses, at the end of an epoch; None for none.
    """
    place = Place(job.folder)
    if deadline is not None and deadline - time.time() < _LEAST:
        return JobOutcome(Ending.STOPPED)
    try:
        with place.locked() as mine:
            if not mine:
                return JobOutcome(Ending.ELSEWHERE)
            if place.state() is State.DONE:
                return JobOutcome(Ending.SKIPPED, place.other_data(job.run))
            place.tidy()
            place.forgive()
            place.say(state="preparing", epoch=place.epochs(), epochs=job.run.settings.epochs)
            with place.log.open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
                return _train(job, place, threads, deadline, limit)
    except (ExperimentError, OSError) as error:  # the folder's own, so it cannot be noted there
        return JobOutcome(Ending.FAILED, f"{type(error).__name__}: {error}")


def _train(
    job: Job, place: Place, threads: int | None, deadline: float | None, limit: float | None
) -> JobOutcome:
    run = job.run
    pause = None if limit is None else time.time() + limit
    ends = min((moment for moment in (deadline, pause) if moment is not None), default=None)
    if run.settings.threads is None:
        run = dataclasses.replace(run, settings=dataclasses.replace(run.settings, threads=threads))
    try:
        _trainer(run, place, job, ends).train()
    except OutOfTime as stopped:
        ending = Ending.STOPPED if ends == deadline else Ending.PAUSED
        return JobOutcome(ending, f"{stopped.epochs_done} of {stopped.epochs} epochs")
    except (RunInterrupted, KeyboardInterrupt):
        return JobOutcome(Ending.INTERRUPTED)
    except Exception as error:
        place.fail(error)
        return JobOutcome(Ending.FAILED, f"{type(error).__name__}: {error}")
    place.say(state="done", epoch=run.settings.epochs, epochs=run.settings.epochs)
    return JobOutcome(Ending.DONE)


def _trainer(run: Run, place: Place, job: Job, ends: float | None) -> Trainer:
    """A trainer that goes on from the checkpoint, or begins where that cannot be read."""
    minutes = None if ends is None else max(ends - time.time(), 1e-3) / 60
    make = partial(
        Trainer,
        run,
        place.folder,
        reporter=_Status(place),
        record=job.record,
        minutes=minutes,
        log=job.log,
    )
    if place.results.exists():  # unreadable, or the run would be done
        _set_aside(place, place.results, "it is written again")
    try:
        return make(resume=os.path.lexists(place.checkpoint))
    except DamagedCheckpointError:
        _set_aside(place, place.checkpoint, "training begins anew")
    return make()


def _set_aside(place: Place, file: Path, then: str) -> None:
    """With a line in the log, where standard error leads."""
    print(f"{file} cannot be read and is now {place.set_aside(file).name}; {then}", file=sys.stderr)


def prepare(threads: int) -> None:
    """Set up a worker process: its threads, and its end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    torch.set_num_threads(threads)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A killed parent cannot end its workers; without this they would train on, unobserved."""
    wait([sentinel])
    os._exit(1)


class _Status(Reporter):
    """Writes the status after each epoch."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._epochs = 0
        self._score_name = ""

    def started(self, run: Run, data: Data, history: Sequence[Mapping[str, Any]]) -> None:
        """Training begins."""
        self._epochs = run.settings.epochs
        self._score_name = run.benchmark.score_name
        self._place.say(state="training", epoch=len(history), epochs=self._epochs)

    def epoch_finished(self, record: Mapping[str, Any], best: Mapping[str, Any]) -> None:
        """The epoch's figures."""
        self._place.say(
            state="training",
            epoch=record["epoch"],
            epochs=self._epochs,
            phase=record["phase"],
            seconds=record["seconds"],
            score_name=self._score_name,
            score=record["score"],
            best=best["score"],
        )
