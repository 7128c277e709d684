"""Working through the runs of a comparison, several at a time, within given minutes.

Every run is a process of its own (``python -m experiments.compare``), so that a crash ends one run,
and runs share a card or a machine as the system shares it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments import checkpoints
from experiments.compare.comparison import Job
from experiments.compare.finished import differences, record
from experiments.errors import CheckpointError, SettingsError
from experiments.files import prepare_folder
from experiments.training import CHECKPOINT, RESULTS

__all__ = ["BUSY", "FINISHED", "STOPPED", "Outcome", "command", "progress", "work"]

FINISHED, STOPPED, BUSY = 0, 3, 4
"""Exit statuses of a run: done, out of time with a checkpoint, another process is at it."""

_PATIENCE = 20.0  # seconds that a run may take to save after Ctrl-C

_LEAST = 0.25  # minutes that are worth starting a run for
Say = Callable[[str], None]


class Outcome(NamedTuple):
    """What was not finished.

    Attributes:
        failed: Runs that ended with an error.
        left: Runs that have not begun, were stopped, or are another process's.
    """

    failed: int
    left: int


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    began: float


def work(
    comparison: str,
    jobs: Sequence[Job],
    out: Path,
    *,
    at_once: int,
    minutes: float | None,
    options: Sequence[str],
    say: Say,
) -> Outcome:
    """Run what is not finished yet, in order, until all is done or the minutes are over.

    Args:
        comparison: Its name.
        jobs: The runs.
        out: Folder of the comparison.
        at_once: Runs side by side.
        minutes: For everything together; None for no limit.
        options: Passed on to every run.
        say: Is told when a run starts and ends.

    Raises:
        SettingsError: ``at_once`` below 1, minutes that are not positive, or a finished run with
            other settings in the way.
    """
    if at_once < 1:
        raise SettingsError(f"jobs = {at_once} cannot work: give at least 1")
    if minutes is not None and not minutes > 0:
        raise SettingsError(f"minutes = {minutes} cannot work: give a positive number")
    began = time.monotonic()
    waiting = deque(job for job in jobs if not _done(job, out))
    running: list[_Running] = []
    failed = 0
    try:
        while waiting or running:
            left = None if minutes is None else minutes - (time.monotonic() - began) / 60
            if left is not None and left < _LEAST:
                waiting.clear()
            while waiting and len(running) < at_once:
                running.append(_start(comparison, waiting.popleft(), out, left, options, say))
            time.sleep(0.2)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                failed += _ended(one, out, say)
    finally:
        for one in running:  # after Ctrl-C, which the runs got too: let them save
            try:
                one.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:  # only this process was told to stop
                one.process.send_signal(signal.SIGINT)
                one.process.wait()
    left = sum(not (out / job.folder / RESULTS).is_file() for job in jobs) - failed
    return Outcome(failed, left)


def _done(job: Job, out: Path) -> bool:
    found = record(job, out)
    if found is None:
        return False
    other = differences(job, found)
    if other:
        raise SettingsError(
            f"{out / job.folder} holds a finished run with other settings ({'; '.join(other)}): "
            "choose another --out, or delete it"
        )
    return True


def command(comparison: str, job: Job, out: Path, minutes: float | None) -> list[str]:
    """The command line of one run."""
    given = [comparison, job.label, str(job.seed), "--out", str(out)]
    if minutes is not None:
        given += ["--minutes", f"{minutes:.3f}"]
    return [sys.executable, "-m", "experiments.compare", *given]


def progress(job: Job, out: Path) -> int:
    """Finished epochs of a run; 0 when it has not begun or its checkpoint cannot be read."""
    try:
        state = checkpoints.load(out / job.folder / CHECKPOINT)
    except CheckpointError:
        return 0
    return len(state["history"])


def _start(
    comparison: str,
    job: Job,
    out: Path,
    minutes: float | None,
    options: Sequence[str],
    say: Say,
) -> _Running:
    folder = out / job.folder
    prepare_folder(folder)
    environment: dict[str, Any] = dict(os.environ)
    if job.run.settings.threads is not None:
        environment["OMP_NUM_THREADS"] = str(job.run.settings.threads)
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [*command(comparison, job, out, minutes), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )
    say(f"{job.folder}: started")
    return _Running(job, process, time.monotonic())


def _ended(one: _Running, out: Path, say: Say) -> bool:
    """Tell how it ended; True if it failed."""
    spent = f"after {(time.monotonic() - one.began) / 60:.1f} minutes"
    code = one.process.returncode
    if code == FINISHED:
        say(f"{one.job.folder}: finished {spent}")
    elif code == STOPPED:
        done, epochs = progress(one.job, out), one.job.run.settings.epochs
        say(f"{one.job.folder}: stopped at {done} of {epochs} epochs {spent}")
    elif code == BUSY:
        say(f"{one.job.folder}: another process is at work there")
    else:
        log = out / one.job.folder / "log.txt"
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        say(f"{one.job.folder}: failed {spent} ({''.join(last)}), see {log}")
        return True
    return False
