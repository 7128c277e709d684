"""Processes that tests start: forked from one server that has imported all that they need."""

from __future__ import annotations

import multiprocessing

__all__ = ["FORKED"]

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
