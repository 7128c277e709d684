"""The results store: a folder for each run, which says by itself how far that run is.

======================  ==========================================================
``results.json``        the record of a finished run
``checkpoint.pt``       its last finished epoch
``status.json``         what a person wants to know while it runs
``failure.json``        why the last attempt ended
``log.txt``             what libraries had to say
``*.damaged``           a file that could not be read, out of the way
``run.lock``            held by the process that trains; free as soon as it is gone,
                        however it went
======================  ==========================================================
"""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from experiments.errors import DamagedDataError, DataError, ExperimentError, MissingDataError
from experiments.files import prepare_folder, strict, write_json
from experiments.files.reading import NUMBER, VALUE, json_file
from experiments.run import FREE_ON_RESUME, Run
from experiments.training import CHECKPOINT, RESULTS, checkpoints, results

_STATUS: Final = "status.json"
_FAILURE: Final = "failure.json"
_LOCK: Final = "run.lock"
LOG: Final = "log.txt"
TRIALS: Final = "trials"
"""Folder in that of a comparison for the runs that chose its values, with seeds of their own."""


_SAID: Final = {
    "state": str,
    "time": NUMBER,
    "epoch": int,
    "epochs": int,
    "phase?": str,
    "seconds?": VALUE,
    "score?": VALUE,
    "best?": VALUE,
}
_TOLD: Final = {"type": str, "message": str, "traceback": str}


class State(Enum):
    """How far a run is."""

    NEW = "new"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


class Place:
    """The folder of one run.

    Args:
        folder: Where; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / RESULTS
        self.checkpoint = folder / CHECKPOINT
        self.log = folder / LOG

    def state(self) -> State:
        """From what is on the disk; whether somebody is at work there is another question.

        Raises:
            DataError: There are results that cannot be read for now, which nobody may replace.
        """
        if self._finished():
            return State.DONE
        if (self.folder / _FAILURE).is_file():
            return State.FAILED
        return State.STARTED if self.checkpoint.is_file() else State.NEW

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the folder's lock; gives False at once where another process holds it.

        The operating system holds it for the process, so that one which was killed leaves no
        stale lock behind.
        """
        prepare_folder(self.folder)
        lock = FileLock(self.folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def tidy(self) -> None:
        """Remove the halves of files that a killed process left; call it with the lock held."""
        for file in self.folder.glob(".*.tmp"):
            file.unlink(missing_ok=True)

    def set_aside(self, file: Path) -> Path:
        """Rename a file that cannot be read, so that a new one can take its place.

        Returns:
            Where it is now.
        """
        return file.replace(file.with_name(f"{file.name}.damaged"))

    def load(self) -> dict[str, Any]:
        """The record of the finished run.

        Raises:
            DataError: There is none, or it is not one.
        """
        return results.load(self.results)

    def say(self, **entries: Any) -> None:
        """Write the status; nothing depends on it, so it is not worth waiting for the disk."""
        text = json.dumps(
            strict(
                {**entries, "pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
            )
        )
        temporary = self.folder / f".{_STATUS}.{os.getpid()}.tmp"
        with suppress(OSError):
            try:
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(self.folder / _STATUS)
            except OSError:
                temporary.unlink()

    def status(self) -> dict[str, Any]:
        """What was said last; empty when nothing was."""
        return self._read(_STATUS, _SAID)

    def epochs(self) -> int:
        """Finished epochs, as far as was said last; 0 when nothing was."""
        return int(self.status().get("epoch", 0))

    def differences(self, run: Run) -> list[str]:
        """What a finished run here was set to otherwise, apart from where and how fast it ran.

        Options that the version which made it did not have count as their defaults.
        """
        if self.state() is not State.DONE:
            return []
        wanted = run.describe()
        for name in FREE_ON_RESUME:
            if name != "epochs":
                del wanted["settings"][name]
        wanted["benchmark"]["options"].pop("data", None)  # a place, and not what is there
        plain = strict(wanted)
        there = _shared(self.load(), plain)
        return checkpoints.differences(
            checkpoints.complete(there, plain, strict(run.defaults())), plain
        )

    def other_data(self, run: Run) -> str:
        """Which data the finished run here had, in words, where this one would have others."""
        there = self.load()["benchmark"]["options"].get("data")
        here = run.benchmark.options().get("data")
        usual = "in the default place"
        return "" if there == here else f"with data {there or usual}, not {here or usual}"

    def fail(self, error: BaseException | str) -> None:
        """Record why an attempt ended."""
        entry: dict[str, Any] = {"time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        if isinstance(error, str):
            entry |= {"type": "ProcessDied", "message": error, "traceback": ""}
        else:
            entry |= {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
        with suppress(ExperimentError):  # where the disk is the reason, nothing can be noted on it
            prepare_folder(self.folder)
            write_json(self.folder / _FAILURE, entry)

    def failure(self) -> dict[str, Any]:
        """Why the last attempt ended; empty when it did not fail."""
        return self._read(_FAILURE, _TOLD)

    def why(self) -> str:
        """The failure in a line."""
        entry = self.failure()
        return f"{entry['type']}: {entry['message']}" if entry else "nothing was noted"

    def forgive(self) -> None:
        """Forget the failure of an earlier attempt."""
        (self.folder / _FAILURE).unlink(missing_ok=True)

    def _finished(self) -> bool:
        try:
            record = results.read(self.results)
        except (MissingDataError, DamagedDataError):
            return False
        try:
            results.check(record, self.results)
        except DataError:
            return False
        return True

    def _read(self, name: str, pattern: Mapping[str, Any]) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = json_file(self.folder / name, "", pattern)
        except DataError:
            return {}
        return entry


def _shared(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What was found of the wanted keys."""
    made = {}
    for key in wanted.keys() & found.keys():
        value, there = wanted[key], found[key]
        nested = isinstance(value, Mapping) and isinstance(there, Mapping)
        made[key] = _shared(there, value) if nested else there
    return made


def records(
    folder: Path, warn: Callable[[str], object] = warnings.warn, *, trials: bool = True
) -> list[Mapping[str, Any]]:
    """Records of all finished runs below ``folder``, in the order of their paths.

    Files of that name that are no record of a run, such as a study's, are passed over.

    Args:
        folder: The store.
        warn: Is told what is left out: files that cannot be read, and runs that failed.
        trials: Whether those in :data:`TRIALS` are among them.

    Raises:
        DataError: There is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: give the --out of a run or a sweep")
    for path in _below(folder, _FAILURE, trials):
        if (place := Place(path.parent)).state() is State.FAILED:
            warn(f"left out: the run in {place.folder} failed ({place.why()})")
    found: list[Mapping[str, Any]] = []
    for path in _below(folder, RESULTS, trials):
        try:
            record = results.read(path)
            if record.keys() >= results.OF_A_RUN:
                results.check(record, path)
                found.append(record)
        except DataError as error:
            warn(f"left out: {error}")
    return found


def _below(folder: Path, name: str, trials: bool) -> list[Path]:
    """All files of that name, sorted."""
    found = sorted(folder.rglob(name))
    return [path for path in found if trials or TRIALS not in path.relative_to(folder).parts]
