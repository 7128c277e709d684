"""Processes that tests start: forked from one server, which is a fork of the process that tests."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any
from unittest.mock import patch

__all__ = ["FORKED", "program", "serve"]

FORKED = multiprocessing.get_context("forkserver")
#: What most processes import on the way, in seconds each; the first in an optimiser's first step.
IMPORTED = ["torch._dynamo", "sklearn.datasets", "laplace", "torchjd.aggregation"]


def serve() -> None:
    """Start the server from what is imported; an interpreter of its own takes many seconds."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    FORKED.set_forkserver_preload([])
    resource_tracker.ensure_running()
    with patch.object(util, "spawnv_passfds", _fork):
        forkserver.ensure_running()


def _fork(path: bytes, args: Sequence[str], passed: Sequence[int]) -> int:
    """`util.spawnv_passfds` of `python -c CODE`: the same, without what pytest and xdist opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of xdist's thread, which only waits for messages
        process = os.fork()
    if process:
        return process
    try:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        null = os.open(os.devnull, os.O_RDWR)
        for opened in map(int, os.listdir("/dev/fd")):
            if opened not in (0, 1, 2, null, *passed):
                with contextlib.suppress(OSError):  # the listing's own is closed already
                    # Not closed: its number would be another file's, and loggers still write there.
                    os.dup2(null, opened)
        warnings.resetwarnings()
        faulthandler.enable(sys.stderr)
        forkserver._forkserver.__init__()  # type: ignore[attr-defined]  # starting, in the parent
        exec(args[-1], {})
    finally:
        os._exit(0)


def program(arguments: list[str], data: str, errors: Path) -> None:
    """`python -m experiments`; what it and its own processes have to say goes into a file."""
    # A job in the background of a script ignores Ctrl-C, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["BAYESAGG_DATA"] = data
    with errors.open("w") as told:
        os.dup2(told.fileno(), 2)
    if "--nproc" in arguments:
        from torch.distributed.elastic.multiprocessing import subprocess_handler

        subprocess_handler.subprocess_handler.Popen = _Popen
    _run(arguments)


def _run(arguments: Sequence[str]) -> None:
    sys.argv = ["experiments", *arguments]
    runpy.run_module("experiments", run_name="__main__", alter_sys=True)


class _Popen:
    """`subprocess.Popen` of `python -m experiments`, as far as torch's launcher uses it."""

    def __init__(self, args: Sequence[str], env: dict[str, str], **settings: Any) -> None:
        assert [*args[:3]] == [sys.executable, "-m", "experiments"]
        assert settings["start_new_session"]
        # What is forked from the server has none, and forks itself.
        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=_launched, args=(args[3:], env))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("experiments", timeout)


def _launched(arguments: Sequence[str], env: dict[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the launcher's own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(env)
    _run(arguments)
