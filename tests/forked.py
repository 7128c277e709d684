"""Processes that tests start: forked from one server that has imported all that they need."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["FORKED", "program"]

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "torch._dynamo",  # two seconds, in an optimiser's first step
        "distributed",
        "sklearn.datasets",
        "experiments.cli.many",
        "tests.runner.test_execute",
        "tests.experiments.test_runs_in_processes",
        "tests.library.test_process_calls",
        "tests.library.test_processes",
    ]
)


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
