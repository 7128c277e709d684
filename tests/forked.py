"""Processes that tests start: forked from one server that has imported all that they need."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path

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
    sys.argv = ["experiments", *arguments]
    with errors.open("w") as told:
        os.dup2(told.fileno(), 2)
    runpy.run_module("experiments", run_name="__main__", alter_sys=True)
