"""Test runs in forked processes: one import of everything heavy, then a fraction of a second each.

A child has its own copy of this process's memory, so whatever a fault does to it is forgotten. It
imports the package from the snapshot; the file with the fault is replaced in memory.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

__all__ = ["Job", "plant", "pytest_in", "run", "warm"]

#: Bytes that a child may hold more than it starts with: a fault may ask for anything.
_MEMORY = 6 << 30
_FORK = multiprocessing.get_context("fork")


#: What the package and its tests import, where it is installed.
_HEAVY = ["torch", "pyro", "pyro.infer.autoguide", "pyro.ops.stats", "numpy", "scipy.stats"]
_HEAVY += ["hypothesis", "arviz", "gpytorch", "laplace", "torchjd.aggregation", "matplotlib.pyplot"]


def warm() -> None:
    """Import what is slow to import, and leave torch with one thread."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    sys.modules["torch"].set_num_threads(1)
    sys.dont_write_bytecode = False  # beside the snapshot's files: the next child is faster
    gc.collect()
    gc.freeze()  # children need not go through all this


class Job:
    """A function's call in a child.

    Args:
        call: what the child does; its result is sent back.
        seconds: of processor time that it may take.
    """

    def __init__(self, call: Callable[[], Any], seconds: float) -> None:
        self.receiver, sender = _FORK.Pipe(duplex=False)
        self.deadline = time.monotonic() + 10 * seconds + 60  # one that waits uses no processor
        self.process = _FORK.Process(target=_child, args=(call, sender, seconds))
        self.process.start()
        sender.close()

    def result(self) -> Any:
        """What the child sent; None where it died or took too long.

        Raises:
            RuntimeError: what the call raised there.
        """
        try:
            found, error = self.receiver.recv()
        except EOFError:
            return None
        else:
            if error:
                raise RuntimeError(error)
            return found
        finally:
            self.process.join(5)
            self.kill()

    def kill(self) -> None:
        """End the child and what it started."""
        if self.process.is_alive():
            os.killpg(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
        self.receiver.close()


def run(calls: Sequence[Callable[[], Any]], seconds: Sequence[float], jobs: int) -> list[Any]:
    """Results of all calls, so many at once; None where one died or took too long."""
    found: list[Any] = [None] * len(calls)
    waiting, running = list(range(len(calls))), dict[int, Job]()
    while waiting or running:
        while waiting and len(running) < jobs:
            at = waiting.pop(0)
            running[at] = Job(calls[at], seconds[at])
        wait([job.receiver for job in running.values()], timeout=1)
        for at, job in list(running.items()):
            if job.receiver.poll() or not job.process.is_alive():
                found[at] = running.pop(at).result()
            elif time.monotonic() > job.deadline:
                running.pop(at).kill()
    return found


def _child(call: Callable[[], Any], sender: Connection, seconds: float) -> None:
    os.setsid()
    limit = round(seconds + time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    try:
        sender.send((call(), ""))
    except BaseException:
        sender.send((None, traceback.format_exc()))
    sender.close()
    os._exit(0)  # no clean-up of what a fault may have broken


def pytest_in(root: Path, files: Sequence[str], plugin: object, *options: str) -> int:
    """Run pytest on files of a snapshot, in this process; its exit status."""
    os.chdir(root)
    sys.path[:] = [str(root), *(entry for entry in sys.path if entry not in ("", str(root)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "mutation")]:
        del sys.modules[name]
    always = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    always += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are there already
    return int(pytest.main([*always, *options, *files], plugins=[plugin]))


def plant(path: Path, module: str, tree: ast.Module) -> None:
    """Let a module's import run this tree in place of its file."""

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType:
            return compile(tree, str(path), "exec")

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> Any:
            if name != module:
                return None
            return importlib.util.spec_from_file_location(
                name, path, loader=Loader(name, str(path))
            )

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
